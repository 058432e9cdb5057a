"""docs/deploy.md, carried out: every command of the page, in its order, on a private Slurm that has nothing yet."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import SlurmSettings
from fake_cluster.slurm.real import RealSlurm
from juice_sim.local import LocalJuice

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy.md"
SLURM_USER = "slurm"
RESTART = "systemctl restart slurmctld\n"

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.compiler,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="installing takes root"),
]

# Programs that a private Slurm has no machine for. Each checks what it is asked to do as far as that goes here.
STAND_INS = {
    "apt-get": """[ "$1 $2" = "install -y" ] || exit 1
exec dpkg-deb -x "$3" {root}""",
    "scp": """[ "$1" = -p ] && [ "$(stat -c %a "$2")" = 400 ] && [ "$(stat -c %s "$2")" = 32 ] || exit 1
echo "${{3%%:*}}" >>{root}/copied""",
    "systemctl": """unit={root}/etc/systemd/system/
case $1 in
daemon-reload) ;;
enable | disable) [ "$2" = --now ] && [ -f "$unit$3" ] && [ -f "$unit${{3%.timer}}.service" ] ;;
start)
    user=$(sed -n 's/^User=//p' "$unit$2")
    run=$(sed -n 's/^ExecStart=//p' "$unit$2" | sed 's/%%/%/g')
    eval "exec runuser -u $user -- $run" ;;
*) exit 1 ;;
esac""",
}


def blocks() -> list[str]:
    """The commands of the page, block by block."""
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@dataclass
class Admin:
    """Types the page's commands, with its paths put below one directory."""

    root: Path
    slurm: RealSlurm
    juice: LocalJuice
    token: str
    done: list[str] = field(default_factory=list)

    def translated(self, block: str) -> str:
        """A block for this place: paths, the controller's address, and where the plugin is."""
        text = block.replace("/etc/slurm/", f"{self.slurm.layout.conf.parent}/")
        text = re.sub(
            r"(?<![\w.])/(etc/juice|etc/systemd|etc/logrotate\.d|opt/juice|var/log/slurm)\b", rf"{self.root}/\1", text
        )
        text = text.replace("https://juice.example.org", self.juice.url)
        plugins = sorted(self.root.rglob("juice.so"))
        installed = [path for path in plugins if "spank-plugin" not in path.parts]
        if not installed:
            return text
        # The plugin's default for the key is not below our directory.
        key = f"key={self.root}/etc/juice/session.key"
        return re.sub(r"required juice\.so (\S+) ([^\s']+)", rf"required {installed[0]} \1 \2 {key}", text)

    def type(self, block: str) -> str:
        """Run a block as a shell would, ending at the first command that fails; what it printed."""
        commands, restart, rest = block.partition(RESTART)
        printed = self._type(commands)
        if restart:
            assert rest == ""
            self.slurm.kill_slurmctld(signal.SIGTERM)
            self.slurm.start_slurmctld()
        self.done.append(block)
        return printed

    def _type(self, block: str) -> str:
        env = self.slurm.user_environment()
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", self.translated(block)],
            env={**env, "PATH": f"{self.root}/stand-ins:{env['PATH']}"},
            cwd=self.root / "checkout",
            input=f"{self.token}\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=120,
        )
        assert done.returncode == 0, f"exit code {done.returncode}:\n{block}\nprinted:\n{done.stdout}"
        return done.stdout


@pytest.fixture
def admin() -> Iterator[Admin]:
    """A Slurm without hooks and plugin, whose SlurmUser is a plain user, and a controller with one agent."""
    try:
        pwd.getpwnam(SLURM_USER)
    except KeyError:
        pytest.skip(f"there is no user {SLURM_USER}; Debian's slurmctld package makes it")
    root = Path(tempfile.mkdtemp(prefix="juice-deploy-"))
    try:
        root.chmod(0o755)
        checkout = root / "checkout"
        for name in ("hooks", "spank-plugin"):
            shutil.copytree(
                ROOT / name, checkout / name, ignore=shutil.ignore_patterns("build", "*.so", "*.deb", "__pycache__")
            )
        for name in ("etc/systemd/system", "etc/logrotate.d", "var/log/slurm", "stand-ins"):
            (root / name).mkdir(parents=True)
        for name, text in STAND_INS.items():
            (root / "stand-ins" / name).write_text(f"#!/bin/sh\n{text.format(root=root)}\n")
            (root / "stand-ins" / name).chmod(0o755)
        shutil.chown(root / "var/log/slurm", SLURM_USER, SLURM_USER)
        settings = SlurmSettings(extra_conf=[f"SlurmUser={SLURM_USER}"])
        with LocalJuice() as juice, RealSlurm(settings, directory=root / "slurm") as slurm:
            pool_id = juice.add_pool("test", agents=1, gpus=2)
            made = juice.client.create_token("slurm-hooks", permissions=[("create_session", pool_id)])
            yield Admin(root, slurm, juice, made.token)
    finally:
        shutil.rmtree(root)


def test_the_page_from_its_first_command_to_its_last(admin: Admin) -> None:
    printed = {block: admin.type(block) for block in blocks()}
    assert len(admin.done) >= 20

    def of(part: str) -> str:
        found = [text for block, text in printed.items() if part in block]
        assert found, f"no block of the page has {part!r}"
        return found[0]

    assert "JobRequeue              = 1" in of("show config")
    version = of("slurm-version").splitlines()
    assert version[-1] == f"slurm-wlm {version[-2]}"
    for check in (
        "runuser -u slurm -- /etc/slurm/juice/juice_hook.py check\n",
        "\n/etc/slurm/juice/juice_hook.py check",
    ):
        lines = (of(check) if check[0] != "\n" else printed["/etc/slurm/juice/juice_hook.py check\n"]).splitlines()
        assert len(lines) >= 10 and all(line.startswith("OK ") for line in lines), lines
    assert "JUICE_SESSION_POOL=test" in of("env | grep") and "JUICE_SESSION_GPUS=1" in of("env | grep")
    assert int(of("grep -c granted").splitlines()[-1]) == 2
    denied = of("--juice-gpu-count=64")
    assert "denied" in denied
    states = dict(line.split() for line in denied.splitlines()[-2:])
    assert states.keys() == {"node1", "node2"} and set(states.values()) <= {"idle", "completing"}, denied
    assert "reconcile: 0 session(s) released, 0 left" in of("systemctl start")
    assert "dry run" in of("--dry-run")
    assert "alarm" not in of("THE SITE MUST ACT") and "expires" in of("THE SITE MUST ACT")
    assert "nothing of job 1" in of(" show 1")
    assert "journal/" not in of("-name '*.json'")
    assert (admin.root / "copied").read_text().split() == ["root@node1", "root@node2"]
    assert "juice" not in (admin.slurm.layout.conf.parent / "plugstack.conf").read_text()
    assert admin.juice.client.sessions() == []


def test_the_modes_are_those_of_the_table(admin: Admin) -> None:
    for block in blocks():
        if block.startswith("sed -i"):
            break
        admin.type(block)
    modes = {}
    for line in PAGE.read_text("utf-8").splitlines():
        for name in re.findall(r"`(/[^`]+)`", line) if line.startswith("| ") else ():
            modes[name] = line
    shown = {
        "/etc/slurm/juice/juice-prolog.sh": ("root", "root", 0o755),
        "/etc/slurm/juice/juice_hook.py": ("root", "root", 0o755),
        "/etc/slurm/juice/juice-config.sh": ("root", "slurm", 0o640),
        "/etc/juice/token": ("slurm", "slurm", 0o400),
        "/etc/juice/session.key": ("slurm", "slurm", 0o400),
        "/opt/juice/.data": ("slurm", "slurm", 0o755),
        "/opt/juice/.data/journal": ("slurm", "slurm", 0o700),
    }
    for name, (owner, group, mode) in shown.items():
        path = Path(admin.translated(name))
        found = path.stat()
        assert (path.owner(), path.group(), found.st_mode & 0o7777) == (owner, group, mode), name
    assert {"/etc/juice/token", "/etc/juice/session.key", "/opt/juice/.data", "/etc/slurm/juice"} <= modes.keys()


def test_a_backup_host_carries_on_what_the_first_began(admin: Admin) -> None:
    """Section 8: a second copy of the hooks, one state directory: its epilog knows the other's session."""
    for block in blocks():
        if block.startswith("cat >>"):
            break
        admin.type(block)
    first = admin.slurm.layout.conf.parent / "juice"
    second = Path(shutil.copytree(first, admin.root / "backup"))
    shutil.chown(second / "juice-config.sh", "root", SLURM_USER)
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_CLUSTER_NAME": "juicesim",
        "SPANK_JUICE_POOL": "test",
    }

    def run(hook: Path) -> list[str]:
        subprocess.run([hook], env=env, user=SLURM_USER, group=SLURM_USER, extra_groups=[], check=True)
        return [session.state for session in admin.juice.client.sessions()]

    assert run(first / "juice-prolog.sh") == ["active"]
    assert run(second / "juice-epilog.sh") in ([], ["canceling"])
    assert list((admin.root / "opt/juice/.data/journal").iterdir()) == []


def test_hooks_that_appear_at_a_reconfigure_are_not_run(tmp_path: Path) -> None:
    """Why section 4 restarts slurmctld."""
    prolog, ran = tmp_path / "prolog", tmp_path / "ran"
    prolog.write_text(f"#!/bin/sh\n: >{ran}\n")
    prolog.chmod(0o755)
    with RealSlurm(SlurmSettings(nodes=1)) as slurm:
        slurm.reconfigure(replace(slurm.settings, prolog=prolog))
        assert slurm.srun(["true"]).returncode == 0
        if slurm.binaries.version < (23, 0, 0):
            assert not ran.exists()
        slurm.kill_slurmctld(signal.SIGTERM)
        slurm.start_slurmctld()
        assert slurm.srun(["true"]).returncode == 0
        assert ran.exists()
