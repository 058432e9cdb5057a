"""A plugin that was built for another release of Slurm: what Slurm does with it, and who explains it."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import SubmitError
from fake_cluster.slurm.real import RealSlurm
from juice_sim import spank_build
from juice_sim.spank_build import BuildUnknown, built_for, configured_plugins, judge

from .conftest import ROOT, Build, JuiceSlurm, make_slurm, run_make

pytestmark = [pytest.mark.compiler]


@pytest.fixture(scope="session")
def other_plugin(build: Build, request: pytest.FixtureRequest) -> Path:
    """The plugin of the other of the two releases."""
    if build.prefix is None:
        found: Build = request.getfixturevalue("tree_build")
        return found.plugin
    plugin: Path = request.getfixturevalue("plugin")
    return plugin


def doctor(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "juice_sim.cli.main", "doctor", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)


def programs_first(slurm: RealSlurm) -> str:
    """A PATH on which `slurm`'s programs are found before any other."""
    return f"{slurm.binaries['srun'].parent}:{os.environ['PATH']}"


def changed(plugin: Path, copy: Path, version: tuple[int, int, int]) -> Path:
    """A copy of the plugin that says it was built for that version."""
    old, new = (struct.pack("<I", a << 16 | b << 8 | c) for a, b, c in (built_for(plugin), version))
    data = plugin.read_bytes()
    assert data.count(old) == 1
    copy.write_bytes(data.replace(old, new))
    copy.chmod(0o755)
    return copy


def use(running: JuiceSlurm, old: Path, new: Path) -> None:
    """From now on plugstack.conf names `new`, as after an upgrade of Slurm that left the plugin behind."""
    stack = running.slurm.layout.conf.with_name("plugstack.conf")
    text = stack.read_text()
    assert str(old) in text
    stack.write_text(text.replace(str(old), str(new)))


def test_the_release_is_read_from_the_file(build: Build) -> None:
    assert spank_build.version_text(built_for(build.plugin)) == RealSlurm(prefix=build.prefix).version


def test_make_says_the_same(build: Build) -> None:
    headers = f"-I{build.prefix}/usr/include" if build.prefix else ""
    said = run_make(build.plugin.parent, "-s", f"SLURM_CPPFLAGS={headers}", "slurm-version").stdout.split()[-1]
    assert said == spank_build.version_text(built_for(build.plugin))


def test_doctor_explains(build: Build, other_plugin: Path) -> None:
    slurm = RealSlurm(prefix=build.prefix)
    here = re.escape(slurm.version)
    other = spank_build.version_text(built_for(other_plugin))

    right = doctor("--plugin", build.plugin, PATH=programs_first(slurm))
    assert right.returncode == 0, right.stdout
    assert re.search(
        rf"^ok      juice.so   {build.plugin} was built for Slurm {here} and fits .*{here}$", right.stdout, re.M
    )

    both = doctor("--plugin", build.plugin, "--plugin", other_plugin, PATH=programs_first(slurm))
    assert both.returncode == 1
    assert f"ok      juice.so   {build.plugin} was built" in both.stdout
    wrong = both.stdout[both.stdout.index("wrong   juice.so") :]
    assert f"{other_plugin} was built for Slurm {other} and does not fit" in wrong
    assert "Incompatible Slurm plugin" in wrong
    assert re.search(
        rf"to mend it: make -C \S+/spank-plugin clean all install, with the headers of Slurm {here[:6]}", wrong
    )

    (told,) = (
        one
        for one in json.loads(doctor("--json", "--plugin", other_plugin, PATH=programs_first(slurm)).stdout)
        if one["name"] == "juice.so"
    )
    assert not told["ok"]
    assert "clean all install" in told["remedy"]


def test_doctor_finds_the_plugin_by_plugstack_conf(plugin: Path, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\nPluginDir={tmp_path}/none:{plugin.parent}\n")
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf").write_text(f"# required {tmp_path}/juice-old.so\ninclude plugstack.conf.d/*.conf\n")
    (tmp_path / "plugstack.conf.d" / "other.conf").write_text("optional x11.so\ninclude *.conf\n")
    (tmp_path / "plugstack.conf.d" / "juice.conf").write_text("required juice.so /opt/juice/juice /opt/juice/.data\n")
    assert configured_plugins(conf) == [plugin]
    done = doctor(SLURM_CONF=str(conf))
    assert f"ok      juice.so   {plugin} was built for" in done.stdout
    changed(plugin, tmp_path / "juice.so", (17, 11, 3))
    (tmp_path / "plugstack.conf").write_text(f"optional {tmp_path}/juice.so\n")
    done = doctor(SLURM_CONF=str(conf))
    assert done.returncode == 1
    assert f"wrong   juice.so   {tmp_path}/juice.so was built for Slurm 17.11.3 and does not fit" in done.stdout


def test_without_plugstack_conf_there_is_nothing_to_judge(tmp_path: Path) -> None:
    assert configured_plugins(tmp_path / "slurm.conf") == []


def test_a_patch_release_fits_and_a_plugin_is_judged_without_slurm(plugin: Path) -> None:
    year, month, patch = built_for(plugin)
    assert judge(plugin, {"srun": (year, month, patch + 1)}).fits
    assert judge(plugin, {}).fits
    assert "no srun, slurmd or slurmctld here" in judge(plugin, {}).detail
    mixed = judge(plugin, {"srun": (year, month, patch), "slurmd": (year + 1, month, 0)})
    assert not mixed.fits
    assert "does not fit slurmd" in mixed.detail and "srun 2" not in mixed.detail


def test_what_is_no_plugin_is_told_apart(plugin: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("required juice.so\n")
    cut = tmp_path / "cut.so"
    cut.write_bytes(plugin.read_bytes()[:3000])
    for path, said in (
        (text, "not an ELF file"),
        (cut, "damaged or cut off"),
        (Path("/bin/true"), "no plugin_version"),
    ):
        with pytest.raises(BuildUnknown, match=said):
            built_for(path)
        assert not judge(path, {}).fits
    absent = judge(tmp_path / "absent.so", {})
    assert absent.detail == f"{tmp_path}/absent.so cannot be read: No such file or directory"
    assert doctor("--plugin", text).returncode == 1


def test_slurm_takes_another_patch_release(build: Build, open_directory: Callable[[str], Path]) -> None:
    """The rule by which `judge` judges."""
    directory = open_directory("state")
    year, month, patch = built_for(build.plugin)
    older = changed(build.plugin, directory / "older.so", (year, month, patch - 1))
    running = make_slurm(directory, Build(older, build.prefix))
    with running.slurm:
        done = running.srun("sh", "-c", "echo $JUICE_SESSION_POOL", options=["--juice-pool=test"])
        assert (done.returncode, done.stdout) == (0, "test\n"), done.stderr


def test_what_a_user_reads(build: Build, other_plugin: Path, open_directory: Callable[[str], Path]) -> None:
    """The texts of spank-plugin/README.md and docs/troubleshooting.md."""
    running = make_slurm(open_directory("state"), build)
    other = spank_build.version_text(built_for(other_plugin))
    with running.slurm:
        use(running, build.plugin, other_plugin)
        done = running.srun("echo", "ran")
        assert (done.returncode, done.stdout) == (1, "")
        stack = running.slurm.layout.conf.with_name("plugstack.conf")
        assert done.stderr.splitlines() == [
            f"srun: plugin_load_from_file: Incompatible Slurm plugin {other_plugin} version ({other})",
            f"srun: error: spank: {other_plugin}: Incompatible plugin version",
            f"srun: error: spank: {stack}:1: Failed to load plugin {other_plugin}. Aborting.",
            "srun: error: Plug-in initialization failed",
        ]
        with pytest.raises(SubmitError, match="sbatch: error: Failed to initialize plugin stack"):
            running.sbatch("true")
        # An optional one is only complained of; then Juice's options are unknown.
        stack.write_text(stack.read_text().replace("required", "optional"))
        done = running.srun("echo", "ran")
        assert (done.returncode, done.stdout) == (0, "ran\n")
        assert "Incompatible plugin version" in done.stderr
        done = running.srun("echo", "ran", options=["--juice-pool=test"])
        assert done.returncode != 0
        assert "unrecognized option '--juice-pool=test'" in done.stderr


def test_what_a_node_does_with_it(build: Build, other_plugin: Path, open_directory: Callable[[str], Path]) -> None:
    """A job that was queued before never runs its program; the node drains. Why one rebuilds before upgrading."""
    running = make_slurm(open_directory("state"), build)
    slurm = running.slurm
    with slurm:
        job_id = running.sbatch("echo ran", "--hold", "--nodelist=node1")
        use(running, build.plugin, other_plugin)
        slurm.release(job_id)
        slurm.wait(job_id, lambda _: slurm.node_states()["node1"] in ("drained", "draining"))
        assert running.output(job_id) == ""
        assert "Plugin stack initialization failed" in slurm.logs()["slurmd-node1.log"]
        job = slurm.wait(job_id, lambda job: job.state.ended or job.restarts > 0)
        if built_for(build.plugin) < (23, 0, 0):
            assert (job.state.value, job.exit_code) == ("COMPLETED", 0)  # 22.05 believes that it ran
        else:
            assert job.restarts == 1


def test_slurmd_does_not_start_with_it(build: Build, other_plugin: Path, open_directory: Callable[[str], Path]) -> None:
    running = make_slurm(open_directory("state"), Build(other_plugin, build.prefix))
    with pytest.raises(TimeoutError, match="node1 ended with code 1") as raised, running.slurm:
        pass
    assert f"{other_plugin}: Incompatible plugin version" in str(raised.value)
    assert "slurmd initialization failed" in str(raised.value)
