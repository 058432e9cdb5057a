"""A private, real Slurm on this host: munged, slurmctld and N slurmd with their own keys, sockets, ports and state.

Works as root and as a plain user, several side by side. As root all daemons run as root (SlurmUser too, so that hooks
and state may lie anywhere; `extra_conf=["SlurmUser=slurm"]` chooses a plain one) and jobs of any user can be
submitted; as a plain user there are only that user's jobs. Nothing outlives the process that made the object, however
it ends: see `daemons.py`.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .daemons import Daemons
from .interface import CommandFailed, Finished, Job, Slurm, SlurmSettings, SubmitError
from .ports import Ports
from .slurm_binaries import SlurmBinaries, SlurmNotFound, find_slurm
from .slurm_conf import Layout, check_settings, node_names, write_configuration
from .slurm_parse import parse_jobs, parse_node_states
from .submitted_juice import SubmittedJuice

NODE_VARIABLE = "JUICE_SIM_NODE"  # marks a node's slurmd
COMMAND_TIMEOUT_S = 120.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ORDERLY_END_S = 20.0  # more than MessageTimeout, for which it may wait for a node that is down
TAKES_JOBS = ("idle", "mixed", "allocated", "completing")
# Said at each start of a healthy Slurm that has no saved state, no PMIx and one host for all of its nodes.
NORMAL_COMPLAINTS = re.compile(
    r"Could not open \S+ state file|Trying backup state save file|pmix|hwloc_topo_load|Unauthorized credential",
    re.IGNORECASE,
)
User = tuple[int, int, list[int]]


def available(prefix: Path | None = None) -> str | None:
    """None when this machine can run a real Slurm (from `prefix`, when given), else why it cannot and the remedy."""
    try:
        find_slurm(prefix)
    except SlurmNotFound as error:
        return str(error)
    if not hasattr(os, "waitstatus_to_exitcode") or not Path("/proc/self/stat").exists():
        return "a private Slurm needs Linux with /proc mounted"
    return None


class RealSlurm(Slurm):
    """The real back end. `prefix`: an installation, or a tree made by `trixie_tree.py`; `directory`: where everything
    goes and stays (a temporary directory, removed at the end, when None)."""

    def __init__(
        self, settings: SlurmSettings | None = None, prefix: Path | None = None, directory: Path | None = None
    ) -> None:
        self.settings = settings or SlurmSettings()
        check_settings(self.settings)
        self.binaries: SlurmBinaries = find_slurm(prefix)
        self._given_directory = directory
        self._daemons: Daemons | None = None
        self._ports: Ports | None = None
        self._layout: Layout | None = None
        self._links: dict[str, Path] = {}
        self._pids: dict[str, int] = {}
        self._last_log = ""
        self._clients = 0
        self._juice = SubmittedJuice()

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        return self.binaries.version_text

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            raise RuntimeError("this Slurm has not been started")
        return self._layout

    @property
    def daemons(self) -> Daemons:
        if self._daemons is None:
            raise RuntimeError("this Slurm does not run; call start()")
        return self._daemons

    @property
    def environment(self) -> dict[str, str]:
        """What a shell needs in its environment to use this Slurm: SLURM_CONF, and PATH with the commands in front."""
        commands = self.binaries["sbatch"].parent
        path = SYSTEM_PATH if str(commands) in SYSTEM_PATH.split(":") else f"{commands}:{SYSTEM_PATH}"
        return {"PATH": path, "SLURM_CONF": str(self.layout.conf)}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the daemons that run: `munged`, `slurmctld`, and the nodes by name."""
        return {name: pid for name, pid in self._pids.items() if self.daemons.returncode(pid) is None}

    def start(self) -> None:
        if self._daemons is not None:
            raise RuntimeError("this Slurm runs already")
        self._daemons = Daemons()
        try:
            self._prepare()
            self._start_munged()
            self._spawn_slurmctld()
            for name in node_names(self.settings):
                self._spawn_slurmd(name)
            self._wait_until("slurmctld and all nodes take jobs", self._ready, 30.0 + 0.5 * self.settings.nodes)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._daemons is None:
            return
        if self._layout is not None:
            self._last_log = self.log()
        daemons, self._daemons = self._daemons, None
        self._pids.clear()
        daemons.end()
        if self._given_directory is None and self._layout is not None:
            shutil.rmtree(self._layout.directory, ignore_errors=True)  # when the supervisor was killed
        if self._ports is not None:
            self._ports.release()
            self._ports = None

    def _prepare(self) -> None:
        if self._given_directory is None:
            directory = Path(tempfile.mkdtemp(prefix="juice-slurm-"))
            self.daemons.remove_at_end(directory)
        else:
            directory = self._given_directory.absolute()
            directory.mkdir(parents=True, exist_ok=True)
        # munged's socket is below, and an address of a unix socket has 107 bytes at most.
        layout = self._layout = Layout(directory)
        if len(str(layout.munge_socket)) > 100:
            raise ValueError(
                f"directory: {str(directory)!r} is too long for a unix socket below it; accepted: 85 bytes"
            )
        directory.chmod(0o755)  # commands and jobs of other users must get through
        private = [layout.state, layout.spool, layout.log, layout.run]
        for path in (layout.munge_key.parent, *private, layout.bin, layout.work):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        for name in node_names(self.settings):
            (layout.spool / name).mkdir(exist_ok=True)
        layout.work.chmod(0o1777)
        user = self._slurm_user()
        if os.geteuid() == 0 and user.pw_uid != 0:
            for path in (layout.state, layout.log, layout.run):
                os.chown(path, user.pw_uid, user.pw_gid)
        if not layout.munge_key.exists():
            layout.munge_key.touch(mode=0o600)
            layout.munge_key.write_bytes(secrets.token_bytes(128))
        for link in layout.bin.iterdir():
            link.unlink()
        self._links = self.binaries.link_daemons(layout.bin)
        self._ports = Ports(1 + self.settings.nodes)
        self._write_configuration()

    def _write_configuration(self) -> None:
        assert self._ports is not None
        write_configuration(
            self.settings,
            self.layout,
            hostname=socket.gethostname().split(".")[0],
            user=self._slurm_user().pw_name,
            slurmd_user=pwd.getpwuid(os.geteuid()).pw_name,
            ports=self._ports.numbers,
            version=self.binaries.version,
            plugin_dir=self.binaries.plugin_dir,
        )

    def _slurm_user(self) -> pwd.struct_passwd:
        for line in self.settings.extra_conf:
            name, _, value = line.partition("=")
            if name.strip().lower() == "slurmuser":
                return pwd.getpwnam(value.strip())
        return pwd.getpwuid(os.geteuid())

    def _spawn(self, name: str, argv: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> None:
        env = {**self.environment, "LANG": "C.UTF-8", **(variables or {})}
        if "TZ" in os.environ:
            env["TZ"] = os.environ["TZ"]
        output = self.layout.log / f"{name}.out"
        self._pids[name] = self.daemons.spawn(argv, env=env, cwd=self.layout.log, stdout=output)

    def _start_munged(self) -> None:
        layout = self.layout
        self._spawn(
            "munged",
            [
                self.binaries["munged"],
                "--foreground",
                "--force",  # the directories above ours may belong to others
                "--num-threads=2",
                f"--key-file={layout.munge_key}",
                f"--socket={layout.munge_socket}",
                f"--pid-file={layout.run}/munged.pid",
                f"--log-file={layout.log}/munged.log",
                f"--seed-file={layout.munge_key.parent}/seed",
            ],
        )
        self._wait_until("munged has made its socket", layout.munge_socket.exists, 30.0)

    def _spawn_slurmctld(self) -> None:
        self._spawn("slurmctld", [self._links["slurmctld"], "-D", "-f", self.layout.conf])

    def _spawn_slurmd(self, name: str) -> None:
        self._spawn(
            name,
            [self._links["slurmd"], "-D", "-N", name, "-f", self.layout.conf, "-d", self._links["slurmstepd"]],
            {NODE_VARIABLE: self._node_mark(name)},
        )

    def _node_mark(self, name: str) -> str:
        return f"{self.layout.directory}:{name}"

    def _ready(self) -> bool:
        states = self._node_states_or_none()
        return states is not None and all(state in TAKES_JOBS for state in states.values())

    def _wait_until(self, what: str, holds: Callable[[], bool], timeout_s: float) -> None:
        """Poll; raise TimeoutError with the daemons' own errors, at once when one of them has ended."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            for name, pid in self._pids.items():
                if (code := self.daemons.returncode(pid)) is not None and not holds():
                    raise TimeoutError(f"waited until {what}, but {name} ended with code {code}:\n{self._errors(name)}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout_s:.0f} s in vain until {what}:\n{self._errors()}")
            time.sleep(0.02)

    def _errors(self, daemon: str = "", lines: int = 15) -> str:
        """What one daemon, or all, complained of: error lines of each log, else its end."""
        parts: list[str] = []
        for name, text in self.logs().items():
            if name not in (f"{daemon}.log", f"slurmd-{daemon}.log", f"{daemon}.out") and daemon:
                continue
            said = [line for line in text.splitlines() if not NORMAL_COMPLAINTS.search(line)]
            shown = ([line for line in said if re.search(r"error|fatal", line, re.IGNORECASE)] or said)[-lines:]
            # A daemon in the foreground prints what it logs; once is enough.
            if shown and not (name.endswith(".out") and parts):
                parts.append(f"--- {name}\n" + "\n".join(shown))
        return "\n".join(parts)

    # -- commands ---------------------------------------------------------------------------------------------------

    def _user(self, user_id: int | None) -> User | None:
        """(uid, gid, groups) to switch to; None: stay who we are."""
        if user_id is None or user_id == os.geteuid():
            return None
        if os.geteuid() != 0:
            raise PermissionError(f"user_id={user_id}: only root can submit jobs for other users than itself")
        entry = pwd.getpwuid(user_id)  # Slurm, too, runs jobs only of users that the system knows
        return user_id, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)

    def user_environment(self, env: Mapping[str, str] | None = None, user_id: int | None = None) -> dict[str, str]:
        """The environment of a submitting command: a login's few variables (nothing of this process's, whose secrets
        would travel with the job), then `env`, then what leads to this Slurm."""
        entry = pwd.getpwuid(os.geteuid() if user_id is None else user_id)
        login = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "LANG": "C.UTF-8"}
        return {**login, "SHELL": "/bin/sh", **self.environment, **(env or {}), "SLURM_CONF": str(self.layout.conf)}

    def _command(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
        cwd: Path | None = None,
        text_in: str | None = None,
    ) -> Finished:
        """Run one of Slurm's short commands to its end."""
        uid, gid, groups = user or (None, None, None)
        try:
            done = subprocess.run(
                [self.binaries[str(argv[0])], *argv[1:]],
                env=dict(env) if env is not None else {**self.environment, "SLURM_TIME_FORMAT": "%s"},
                cwd=cwd or self.layout.work,
                user=uid,
                group=gid,
                extra_groups=groups,
                umask=0o022,
                input=text_in,
                stdin=subprocess.DEVNULL if text_in is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise CommandFailed(
                f"{argv[0]} did not return within {COMMAND_TIMEOUT_S:.0f} s; slurmctld's log ends:\n{self._log_end()}"
            ) from None
        return Finished(done.returncode, done.stdout, done.stderr)

    def _scontrol(self, *args: str) -> str:
        done = self._command(["scontrol", *args])
        if done.returncode != 0:
            raise CommandFailed(f"scontrol {' '.join(args)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def sbatch(
        self,
        script: str | Path,
        options: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        user_id: int | None = None,
        cwd: Path | None = None,
    ) -> int:
        argv: list[str | Path] = ["sbatch", "--parsable", *options]
        text = None
        if isinstance(script, Path):
            argv.append(script.absolute())
        else:
            text = script if script.startswith("#!") else f"#!/bin/sh\n{script}"
        done = self._command(
            argv, env=self.user_environment(env, user_id), user=self._user(user_id), cwd=cwd, text_in=text
        )
        found = re.search(r"^(\d+)", done.stdout, re.MULTILINE)
        if found is None:
            raise SubmitError(done.stderr.strip() or f"sbatch printed no job id: {done.stdout!r}")
        if self.settings.plugstack:
            given = self.user_environment(env, user_id)
            self._juice.batch(int(found[1]), script if text is None else text, options, given, cwd or self.layout.work)
        return int(found[1])

    def srun(
        self,
        command: Sequence[str],
        options: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        user_id: int | None = None,
        timeout_s: float = 120.0,
        on_job_id: Callable[[int], None] | None = None,
    ) -> Finished:
        user = self._user(user_id)
        self._clients += 1
        prefix = self.layout.run / f"srun-{os.getpid()}-{self._clients}-{secrets.token_hex(4)}"
        stdout, stderr = Path(f"{prefix}.out"), Path(f"{prefix}.err")
        pid = self.daemons.spawn(
            [self.binaries["srun"], *options, *command],
            env=self.user_environment(env, user_id),
            cwd=self.layout.work,
            stdout=stdout,
            stderr=stderr,
            user=user,
        )
        deadline = time.monotonic() + timeout_s

        def announce(job_id: int) -> None:
            if self.settings.plugstack:
                self._juice.interactive(job_id, command, options, self.user_environment(env, user_id), self.layout.work)
            if on_job_id is not None:
                on_job_id(job_id)

        if on_job_id is not None or self.settings.plugstack:
            self._announce_job(pid, deadline, announce)
        code = self.daemons.wait(pid, max(0.0, deadline - time.monotonic()))
        if code is None:
            self.daemons.kill(pid)
            raise TimeoutError(
                f"srun {' '.join([*options, *command])} did not end within {timeout_s:.0f} s; it said "
                f"{stderr.read_text(errors='replace')!r}; slurmctld's log ends:\n{self._log_end()}"
            )
        finished = Finished(code, stdout.read_text(errors="replace"), stderr.read_text(errors="replace"))
        stdout.unlink()
        stderr.unlink()
        return finished

    def _announce_job(self, pid: int, deadline: float, on_job_id: Callable[[int], None]) -> None:
        """Call back with the id of the job that srun `pid` made. A job shows the session id of the command that
        submitted it, and the supervisor starts each command in a session of its own."""
        mark = re.compile(rf"^JobId=(\d+)(?:(?!^JobId=).)*? AllocNode:Sid=\S+:{pid}$", re.MULTILINE | re.DOTALL)
        while time.monotonic() < deadline:
            ended = self.daemons.returncode(pid) is not None
            found = mark.search(self._scontrol("show", "job"))
            if found is not None:
                on_job_id(int(found[1]))
                return
            if ended:
                return  # refused at submit: there is no job
            time.sleep(0.02)

    def scancel(self, job_id: int) -> None:
        done = self._command(["scancel", str(job_id)])
        if done.returncode != 0:
            raise CommandFailed(f"scancel {job_id}: {done.stderr.strip()}")

    def jobs(self) -> list[Job]:
        return [self._juice.added_to(job) for job in parse_jobs(self._scontrol("show", "job"))]

    def job(self, job_id: int) -> Job:
        try:
            found = parse_jobs(self._scontrol("show", "job", str(job_id)))
        except CommandFailed as error:
            if "Invalid job id" in str(error):
                raise KeyError(job_id) from None
            raise
        # An array's id or a het job's brings all its members; the one whose own id it is comes first.
        for job in found:
            if job.job_id == job_id:
                return self._juice.added_to(job)
        if not found:
            raise KeyError(job_id)
        return self._juice.added_to(found[0])

    def wait(self, job_id: int, until: Callable[[Job], bool] | None = None, timeout_s: float = 120.0) -> Job:
        holds = until if until is not None else (lambda job: job.state.ended)
        deadline = time.monotonic() + timeout_s
        pause = 0.02
        while not holds(job := self.job(job_id)):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"waited {timeout_s:.0f} s in vain for job {job_id}; it is {job}; "
                    f"slurmctld's log ends:\n{self._log_end()}"
                )
            time.sleep(pause)
            pause = min(pause * 1.3, 0.2)
        return job

    def release_begin_time(self, job_id: int) -> None:
        self._scontrol("update", f"JobId={job_id}", "StartTime=now")

    def release(self, job_id: int) -> None:
        """`scontrol release N`: lift a hold, the user's or Slurm's own (reason launch_failed_requeued_held)."""
        self._scontrol("release", str(job_id))

    def requeue(self, job_id: int) -> None:
        self._scontrol("requeue", str(job_id))

    # -- breaking things --------------------------------------------------------------------------------------------

    def kill_slurmctld(self, sig: int = signal.SIGKILL) -> None:
        """Raises TimeoutError when it does not end: 22.05 hangs now and then at signal 15 while hooks run, with
        `_msg_accept: read/write op failed` as its last words."""
        self.daemons.kill(self._pids["slurmctld"], sig, timeout_s=ORDERLY_END_S)

    def start_slurmctld(self) -> None:
        if "slurmctld" in self.pids:
            raise RuntimeError("slurmctld runs already; kill_slurmctld() first")
        self._spawn_slurmctld()
        answers = "slurmctld answers again"
        slurmctld = self._pids["slurmctld"]
        deadline = time.monotonic() + 60.0
        while self._command(["scontrol", "ping"]).returncode != 0:
            code = self.daemons.returncode(slurmctld)
            if code is not None or time.monotonic() > deadline:
                raise TimeoutError(f"waited in vain until {answers} (its exit code: {code}):\n{self._errors()}")
            time.sleep(0.02)

    def fail_node(self, name: str) -> None:
        """Kill the node's slurmd, its slurmstepds and all of their processes. slurmctld notices after SlurmdTimeout
        (20 s unless `extra_conf` sets another; seen: after 26-50 s)."""
        self._known_node(name)
        # slurmd by its variable; a slurmstepd, whose title may have overwritten its environment, by its socket; what a
        # job detached from its slurmstepd by the name that Slurm gives it.
        marks = {NODE_VARIABLE: self._node_mark(name), "SLURMD_NODENAME": name}
        self.daemons.kill_marked(marks, self.layout.spool / name)

    def resume_node(self, name: str) -> None:
        """Start the node's slurmd again when it is gone, lift a drain, and wait until the node takes jobs."""
        self._known_node(name)
        if name not in self.pids:
            self._spawn_slurmd(name)

        def takes_jobs() -> bool:
            state = (self._node_states_or_none() or {}).get(name, "")
            if state in ("drained", "draining", "down"):
                # Refused while the node registers, so the state decides, not the exit code.
                self._command(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
            return state in TAKES_JOBS

        deadline = time.monotonic() + 60.0
        while not takes_jobs():
            code = self.daemons.returncode(self._pids[name])
            if code is not None or time.monotonic() > deadline:
                raise TimeoutError(
                    f"{name} does not come back (state {self.node_states().get(name)}, slurmd's exit code {code}):\n"
                    f"{self._errors()}"
                )
            time.sleep(0.05)

    def _known_node(self, name: str) -> None:
        if name not in node_names(self.settings):
            raise KeyError(f"no node {name!r}; there are {', '.join(node_names(self.settings))}")

    def _node_states_or_none(self) -> dict[str, str] | None:
        done = self._command(["scontrol", "show", "node"])
        return parse_node_states(done.stdout) if done.returncode == 0 else None

    def node_states(self) -> dict[str, str]:
        return parse_node_states(self._scontrol("show", "node"))

    def reconfigure(self, settings: SlurmSettings) -> None:
        """Write the configuration anew (e.g. another count of licenses) and have the daemons read it."""
        check_settings(settings)
        if self._ports is None or settings.nodes != self.settings.nodes:
            raise ValueError("reconfigure keeps the number of nodes of a running Slurm")
        self.settings = settings
        self._write_configuration()
        self._scontrol("reconfigure")

    # -- what was said ----------------------------------------------------------------------------------------------

    def log(self) -> str:
        if self._daemons is None:
            return self._last_log
        path = self.layout.log / "slurmctld.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _log_end(self, lines: int = 30) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def logs(self) -> dict[str, str]:
        """The logs of all daemons: `slurmctld.log`, `slurmd-node1.log`, `munged.log`, ... and `*.out`, what they
        printed before they could log."""
        found = sorted(self.layout.log.glob("*.log")) + sorted(self.layout.log.glob("*.out"))
        return {path.name: path.read_text(errors="replace") for path in found}
