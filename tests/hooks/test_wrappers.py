"""The shell wrappers under the environments in which slurmctld, or an admin, may start them."""

from __future__ import annotations

import os
import subprocess

import pytest

PYTHON = "/usr/bin/python3"
WRAPPERS = ("juice-prolog.sh", "juice-epilog.sh")


def closing(*numbers):
    """A preexec function that closes these descriptors."""

    def close():
        for number in numbers:
            os.close(number)

    return close


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_job_without_juice_options_needs_none_of_the_other_files(name, site_of):
    site = site_of(url="http://127.0.0.1:9")
    (site.hooks / "juice-config.sh").write_text("exit 77\n")
    (site.hooks / "juice_hook.py").unlink()
    env = {k: v for k, v in site.environment().items() if not k.startswith("SPANK")}
    assert site.shell(name, env=env).returncode == 0
    assert not list(site.state.iterdir())


def test_deepops_919_an_empty_environment(site, juice):
    result = subprocess.run(["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in site.environment().items()),
                             str(site.hooks / "juice-prolog.sh")], capture_output=True)  # fmt: skip
    assert result.returncode == 0, site.log()
    assert result.stdout == result.stderr == b""
    assert site.fields()["verdict"] == "granted"


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_descriptors(closed, site, juice):
    for name in WRAPPERS:
        kwargs = {"capture_output": False, "preexec_fn": closing(*closed)}
        assert site.shell(name, env=site.environment(), **kwargs).returncode == 0, site.log()
    assert juice.settled() == []
    assert "granted" in site.log() and "released" in site.log()


def test_nothing_is_written_into_a_state_file_when_standard_error_is_closed(site, juice):
    site.token = "m2m-nonsense"
    site.install(wait=1)
    kwargs = {"capture_output": False, "preexec_fn": closing(0, 1, 2)}
    assert site.shell("juice-prolog.sh", env=site.environment(), **kwargs).returncode == 1
    assert "401" in site.log()
    assert site.shell("juice-epilog.sh", env=site.environment(), **kwargs).returncode == 0
    assert site.leftovers() == []


def test_any_directory_and_a_relative_path(site, juice, tmp_path):
    env = site.environment()
    assert subprocess.run(["./juice-prolog.sh"], cwd=site.hooks, env=env).returncode == 0
    assert subprocess.run(["/bin/sh", "juice-epilog.sh"], cwd=site.hooks, env=env).returncode == 0
    gone = tmp_path / "gone"
    gone.mkdir()
    assert site.shell("juice-prolog.sh", env=env, cwd=gone, preexec_fn=gone.rmdir).returncode == 0
    assert site.shell("juice-epilog.sh", env=env, cwd="/").returncode == 0
    assert juice.settled() == []


@pytest.mark.parametrize("what", ["folder", "files"])
def test_a_symlinked_path(what, site, juice, tmp_path):
    link = tmp_path / "link"
    if what == "folder":
        link.symlink_to(site.hooks)
    else:
        link.mkdir()
        for name in WRAPPERS:
            (link / name).symlink_to(site.hooks / name)
    for name in WRAPPERS:
        assert subprocess.run([link / name], env=site.environment()).returncode == 0
    assert len(juice.sessions(everything=True)) == 1
    assert juice.settled() == []


def test_a_path_with_blanks_and_quotes(site, juice, tmp_path):
    folder = tmp_path / "it's a $(folder)"
    site.hooks.rename(folder)
    site.hooks = folder
    site.install(key_file=folder / "session.key")
    assert site.shell("juice-prolog.sh", env=site.environment()).returncode == 0, site.log()


HOSTILE = [
    "$(touch {0})",
    "`touch {0}`",
    "; touch {0}",
    "'; touch {0}; '",
    '"; touch {0}; "',
    "a\ntouch {0}",
    "-x",
    "*",
    "\x1b[2J",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_user_puts_into_spank_variables_is_never_run(text, site, juice, tmp_path):
    planted = tmp_path / "planted"
    value = text.format(planted)
    for name in ("POOL", "GPU_COUNT", "VRAM", "VRAM_STRICT", "MATCH_LABELS", "TOLERATES"):
        env = site.environment(**{name: value})
        env.update(SPANK_PATH=str(tmp_path), SPANK_LD_PRELOAD=value, SLURM_JOB_NAME=value, SLURM_JOB_WORK_DIR=value)
        assert site.shell("juice-prolog.sh", env=env).returncode == 0, name
        assert site.fields()["verdict"] == "denied", name
        assert site.shell("juice-epilog.sh", env=env).returncode == 0, name
    assert not planted.exists()
    assert juice.sessions(everything=True) == []
    assert all(line.startswith("20") for line in site.log().splitlines())  # one line each, whatever was in the value
    assert "\x1b" not in site.log()


def test_qiskit_133_the_token_is_in_no_argv_and_no_environment(site, juice, wait_for):
    (site.hooks / "juice-config.sh").write_text(
        (site.hooks / "juice-config.sh").read_text().replace("JUICE_TOKEN_FILE=", "#")
        + f"export JUICE_TOKEN={site.token}\n"
    )
    (site.hooks / "juice-config.sh").chmod(0o640)
    juice.held.set()
    hook = subprocess.Popen([site.hooks / "juice-prolog.sh"], env=site.environment())
    wait_for(juice.sessions)
    for name in ("cmdline", "environ"):
        with open(f"/proc/{hook.pid}/{name}", "rb") as file:
            assert site.token.encode() not in file.read()
    juice.held.clear()
    assert hook.wait(60) == 0
    session = site.fields()["session_id"]
    for path in [p for p in site.state.rglob("*") if p.is_file()]:
        content = path.read_bytes()
        assert site.token.encode() not in content
        if path.stat().st_mode & 0o077:
            assert session.encode() not in content, path


AUDITED = """#!/usr/bin/python3 -I
import os, sys
record = os.open({record!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
sys.addaudithook(lambda event, values: os.write(record, (event + "\\n").encode()) and None)
code, sys.argv = sys.argv[4], ["-c", *sys.argv[5:]]
exec(code)
"""


def test_the_hooks_start_no_program(site, juice, tmp_path):
    """Slurm's documentation forbids scontrol, squeue and the like in these hooks; public reports tell of deadlocks."""
    record, python = tmp_path / "events", tmp_path / "python3"
    python.write_text(AUDITED.format(record=str(record)))
    python.chmod(0o755)
    site.install(python=python)
    for name in WRAPPERS:
        assert site.shell(name, env=site.environment()).returncode == 0, site.log()
    site.token = "m2m-nonsense"
    site.install(wait=1)
    assert site.shell("juice-prolog.sh", env=site.environment(job_id=13)).returncode == 1
    events = record.read_text().splitlines()
    assert events.count("socket.connect") >= 3  # one per hook at least: they were watched
    started = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}
    assert started.isdisjoint(events)


def test_a_config_with_a_token_that_others_can_read_is_refused(site, juice):
    config = site.hooks / "juice-config.sh"
    config.write_text(config.read_text() + f"JUICE_TOKEN={site.token}\n")
    config.chmod(0o644)
    assert site.shell("juice-prolog.sh", env=site.environment()).returncode == 1
    assert f"chmod 0640 {config}" in site.log()


def test_settings_do_not_come_from_the_environment(site, juice):
    env = {
        **site.environment(),
        "JUICE_CONTROLLER": "http://127.0.0.1:9",
        "JUICE_STATE_DIR": "/nonexistent",
        "JUICE_TOKEN": "x",
    }
    assert site.shell("juice-prolog.sh", env=env).returncode == 0


@pytest.mark.parametrize("line", ["exit 0", "if true; then", "unknown_function || exit 0"])
def test_a_config_that_ends_the_shell_does_not_let_the_job_through(line, site):
    config = site.hooks / "juice-config.sh"
    config.write_text(f"{config.read_text()}{line}\n")
    result = site.shell("juice-prolog.sh", env=site.environment())
    assert result.returncode == 1
    assert "it may only set variables" in result.stderr


def test_missing_parts_are_named(site):
    (site.hooks / "juice-config.sh").unlink()
    result = site.shell("juice-prolog.sh", env=site.environment())
    assert result.returncode == 1
    assert "juice-config.sh" in result.stderr
    site.install(python="/nonexistent/python3")
    result = site.shell("juice-epilog.sh", env=site.environment())
    assert result.returncode == 1
    assert "JUICE_PYTHON" in result.stderr


def test_byte_code_is_kept(site, juice):
    assert site.shell("juice-prolog.sh", env=site.environment()).returncode == 0
    assert len(list((site.hooks / "__pycache__").glob("juice_hook.*.pyc"))) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become SlurmUser")
def test_as_a_plain_slurm_user_and_root_leaves_no_file_that_it_cannot_use(site, juice, tmp_path):
    uid = gid = 64030
    for path in (site.base, *site.base.rglob("*")):
        os.chown(path, uid, gid)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    assert site.shell("juice_hook.py", "reconcile").returncode == 0  # by root
    as_user = {"user": uid, "group": gid, "extra_groups": []}
    assert site.shell("juice-prolog.sh", env=site.environment(), **as_user).returncode == 0, site.log()
    assert site.shell("juice_hook.py", "check", **as_user).returncode == 0
    assert site.shell("juice-epilog.sh", env=site.environment(), **as_user).returncode == 0, site.log()
    assert {p.stat().st_uid for p in site.state.rglob("*")} == {uid}


def test_the_wrappers_and_the_template_are_clean():
    from juice_sim.resources import hooks_dir

    scripts = sorted(str(p) for p in hooks_dir().glob("*.sh"))
    assert len(scripts) == 3
    for script in scripts:
        assert subprocess.run(["/bin/sh", "-n", script]).returncode == 0
    names = set()
    for line in (hooks_dir() / "juice-config.sh").read_text().splitlines():
        if line.lstrip("#").startswith("JUICE_"):
            names.add(line.lstrip("#").partition("=")[0])
    from juice_sim.hooks_install import SETTINGS

    assert names == SETTINGS


@pytest.mark.parametrize("shell", [["/bin/dash"], ["/bin/bash", "--posix"]])
def test_other_shells_than_this_systems_sh(shell, site, juice):
    for name in WRAPPERS:
        result = subprocess.run([*shell, str(site.hooks / name)], env=site.environment(), capture_output=True)
        assert (result.returncode, result.stderr) == (0, b""), site.log()
    assert juice.settled() == []


def test_pynacl_serves_where_there_is_no_libsodium(site, juice):
    """Debian's own Python finds PyNaCl though the wrappers start it without site-packages."""
    path = site.hooks / "juice_hook.py"
    path.write_text(path.read_text().replace('"libsodium.so', '"no-such-libsodium.so'))
    probe = subprocess.run([PYTHON, "-I", "-c", "import nacl"], capture_output=True)
    result = site.shell("juice-prolog.sh", env=site.environment())
    if probe.returncode == 0:
        assert result.returncode == 0, site.log()
        assert site.fields()["verdict"] == "granted"
    else:
        assert result.returncode == 1
        assert "libsodium" in site.log()
