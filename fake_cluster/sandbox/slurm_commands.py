"""What the stand-in commands of a simulated Slurm do: sbatch, srun, squeue, scancel, sinfo, scontrol."""

from __future__ import annotations

import argparse
import codecs
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..slurm.interface import CommandFailed, Finished, Job, JobState, Slurm, SubmitError
from ..slurm.slurm_parse import expand_hosts
from . import command_words as words_of
from .control import Reply
from .job_table import (
    CODES,
    SQUEUE_FORMAT,
    BadFormat,
    job_record,
    node_record,
    shown_id,
    sinfo_text,
    squeue_text,
    user_name,
)
from .places import Place
from .processes import JOB_VARIABLE

NOT_SIMULATED = ("salloc", "sattach", "sacct", "sacctmgr", "sbcast", "sdiag", "sprio", "sreport", "sshare", "sstat")
FOR_EVER_S = 1e8
POLL_S = 0.05


class Refused(Exception):
    """One of the commands refuses its words; `str(error)` is what it prints."""


class _Words(argparse.ArgumentParser):
    def __init__(self, command: str) -> None:
        super().__init__(prog=command, add_help=False, allow_abbrev=True)

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{self.prog}: error: {message}")


class StandIns:
    """Carries out the commands on `slurm`; `install` puts them into the sandbox's directory of commands."""

    def __init__(self, slurm: Slurm, place: Place) -> None:
        self._slurm = slurm
        self._place = place
        self._commands: dict[str, Callable[[list[str], Mapping[str, Any], Reply], int]] = {
            "sbatch": self._sbatch,
            "srun": self._srun,
            "squeue": self._squeue,
            "scancel": self._scancel,
            "sinfo": self._sinfo,
            "scontrol": self._scontrol,
        }

    def install(self) -> None:
        folder = self._place.commands_dir
        folder.mkdir(exist_ok=True)
        program = Path(__file__).with_name("stand_in.py")
        start = f"exec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(program))}"
        for name in (*self._commands, *NOT_SIMULATED):
            path = folder / name
            path.write_text(f'#!/bin/sh\n{start} {shlex.quote(str(self._place.control_socket))} {name} "$@"\n')
            path.chmod(0o755)

    def run(self, request: Mapping[str, Any], reply: Reply) -> None:
        """Answer one request of `stand_in.py`."""
        name = str(request["command"])
        command = self._commands.get(name)
        if command is None:
            reply.err(f"{name}: error: a simulated Slurm has no {name}; accepted: {', '.join(self._commands)}; ")
            reply.err("for the real ones: juice-sim up --slurm real\n")
            reply.exit(1)
            return
        words = [str(word) for word in request["words"]]
        try:
            if words in (["-V"], ["--version"]):
                reply.out("slurm simulated\n")
                code = 0
            else:
                code = command(words, request, reply)
        except (Refused, SubmitError, CommandFailed) as error:
            reply.err(f"{error}\n")
            code = 1
        # For `srun` inside a job the client becomes the program, and there is no code yet.
        if code >= 0:
            reply.exit(code)

    # -- sbatch and srun ----------------------------------------------------------------------------------------------

    def _sbatch(self, words: list[str], request: Mapping[str, Any], reply: Reply) -> int:
        words, wrapped = words_of.take_value(words, "wrap")
        options, rest = words_of.split(words)
        cwd = Path(request["cwd"])
        script: str | Path
        if wrapped is not None:
            if rest:
                raise Refused("sbatch: error: Script arguments not permitted with --wrap option")
            script = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrapped}\n"
            if not any(word.startswith(("--job-name", "-J")) for word in options):
                options = ["--job-name=wrap", *options]
        elif rest:
            script = cwd / rest[0]
            if not script.is_file():
                raise Refused(f"sbatch: error: Unable to open file {rest[0]}")
            if len(rest) > 1:
                raise Refused("sbatch: error: words for the script are not simulated; write them into the script")
        else:
            script = reply.ask_stdin()
        job_id = self._slurm.sbatch(script, options, env=request["environment"], cwd=cwd)
        parsable = words_of.has_flag(options, "--parsable")
        reply.out(f"{job_id}\n" if parsable else f"Submitted batch job {job_id}\n")
        if not words_of.has_flag(options, "--wait", "-W"):
            return 0
        while True:
            try:
                job = self._slurm.wait(job_id, timeout_s=1.0)
            except TimeoutError:
                if reply.hung_up():
                    return 0
                continue
            return 128 + job.signal if job.signal else job.exit_code

    def _srun(self, words: list[str], request: Mapping[str, Any], reply: Reply) -> int:
        if any(word == "--pty" or word.startswith("--pty=") for word in words_of.split(words)[0]):
            raise Refused("srun: error: --pty is not simulated; for a terminal in a job: juice-sim up --slurm real")
        options, command = words_of.split(words, components=True)
        if not command:
            raise Refused("srun: fatal: No command given to execute.")
        environment = dict(request["environment"])
        if environment.get(JOB_VARIABLE) == str(self._place.directory) and self._runs(environment):
            reply.step(command)
            return -1
        if not any(word.startswith(("--chdir", "-D")) for word in options):
            options = [f"--chdir={request['cwd']}", *options]
        return _Srun(self._slurm, self._place, reply).run(command, options, environment)

    def _runs(self, environment: Mapping[str, str]) -> bool:
        job_id = environment.get("SLURM_JOB_ID", "")
        try:
            return job_id.isdigit() and self._slurm.job(int(job_id)).state is JobState.RUNNING
        except KeyError:
            return False

    # -- squeue, scancel, sinfo, scontrol -----------------------------------------------------------------------------

    def _squeue(self, words: list[str], request: Mapping[str, Any], reply: Reply) -> int:
        parser = _Words("squeue")
        parser.add_argument("-h", "--noheader", action="store_true")
        parser.add_argument("-a", "--all", action="store_true")
        parser.add_argument("--me", action="store_true")
        parser.add_argument("-r", "--array", action="store_true")
        parser.add_argument("-u", "--user", "--users", default="")
        parser.add_argument("-j", "--jobs", "--job", default="")
        parser.add_argument("-n", "--name", default="")
        parser.add_argument("-t", "--states", "--state", default="")
        parser.add_argument("-o", "--format", default=SQUEUE_FORMAT)
        args = parser.parse_args(words)
        jobs = self._slurm.jobs()
        states = {word.strip().upper() for word in args.states.split(",") if word.strip()}
        known = {state.value for state in JobState} | set(CODES.values()) | {"ALL"}
        if states - known:
            raise Refused(f"squeue: error: Invalid job state specified: {sorted(states - known)[0]}")
        if "ALL" not in states:
            jobs = [
                job
                for job in jobs
                if (job.state.value in states or CODES[job.state] in states if states else not job.state.ended)
            ]
        if args.user or args.me:
            users = set(args.user.split(","))
            jobs = [job for job in jobs if args.me or user_name(job.user_id) in users or str(job.user_id) in users]
        if args.name:
            jobs = [job for job in jobs if job.name in args.name.split(",")]
        if args.jobs:
            chosen = set(args.jobs.split(","))
            jobs = [job for job in jobs if chosen & {str(job.job_id), str(job.array_job_id), shown_id(job)}]
        try:
            reply.out(squeue_text(jobs, args.format, heading=not args.noheader))
        except BadFormat as error:
            raise Refused(f"squeue: error: {error}") from None
        return 0

    def _scancel(self, words: list[str], request: Mapping[str, Any], reply: Reply) -> int:
        parser = _Words("scancel")
        parser.add_argument("-u", "--user", default="")
        parser.add_argument("-n", "--name", default="")
        parser.add_argument("-t", "--state", default="")
        parser.add_argument("-Q", "--quiet", action="store_true")
        parser.add_argument("--me", action="store_true")
        parser.add_argument("ids", nargs="*")
        args = parser.parse_args(words)
        if not (args.ids or args.user or args.name or args.me or args.state):
            raise Refused("scancel: error: No job identification provided")
        jobs = [job for job in self._slurm.jobs() if not job.state.ended]
        chosen: list[int] = []
        code = 0
        for text in (part for word in args.ids for part in word.split(",") if part):
            found = _matching(jobs, text)
            if found is None:
                raise Refused(f"scancel: error: Invalid job id {text}")
            if not found and not args.quiet:
                reply.err(f"scancel: error: Kill job error on job id {text}: Invalid job id specified\n")
                code = 1
            chosen += found
        if not args.ids:
            chosen = [
                job.job_id
                for job in jobs
                if (not args.user or args.user in (user_name(job.user_id), str(job.user_id)))
                and (not args.name or job.name == args.name)
                and (not args.state or args.state.upper() in (job.state.value, CODES[job.state]))
            ]
        for job_id in chosen:
            self._slurm.scancel(job_id)
        return code

    def _sinfo(self, words: list[str], request: Mapping[str, Any], reply: Reply) -> int:
        parser = _Words("sinfo")
        parser.add_argument("-h", "--noheader", action="store_true")
        args = parser.parse_args(words)
        reply.out(sinfo_text(self._slurm.node_states(), heading=not args.noheader))
        return 0

    def _scontrol(self, words: list[str], request: Mapping[str, Any], reply: Reply) -> int:
        match words:
            case ["show", "job" | "jobs", *ids]:
                return self._show_jobs(ids, reply)
            case ["show", "node" | "nodes", *names]:
                return self._show_nodes(names, reply)
            case ["show", "hostnames" | "hostname", *lists]:
                text = lists[0] if lists else str(request["environment"].get("SLURM_JOB_NODELIST", ""))
                reply.out("".join(f"{name}\n" for name in expand_hosts(text)))
                return 0
            case ["ping"]:
                up = self._is_up()
                reply.out(f"Slurmctld(primary) at localhost is {'UP' if up else 'DOWN'}\n")
                return 0 if up else 1
            case ["requeue", job_id] if job_id.isdigit():
                self._known(job_id)
                self._slurm.requeue(int(job_id))
                return 0
            case ["update", first, second]:
                given = dict(word.lower().partition("=")[::2] for word in (first, second))
                job_id = given.get("jobid", given.get("job", ""))
                if job_id.isdigit() and given.get("starttime") == "now":
                    self._known(job_id)
                    self._slurm.release_begin_time(int(job_id))
                    return 0
        raise Refused(
            f"scontrol: error: {' '.join(words)!r} is not simulated; accepted: show job [ID], show node [NAME], "
            "show hostnames LIST, requeue ID, update JobId=ID StartTime=now, ping"
        )

    def _is_up(self) -> bool:
        try:
            self._slurm.node_states()
        except CommandFailed:
            return False
        return True

    def _known(self, job_id: str) -> Job:
        try:
            return self._slurm.job(int(job_id))
        except KeyError:
            raise Refused("slurm_load_jobs error: Invalid job id specified") from None

    def _show_jobs(self, ids: Sequence[str], reply: Reply) -> int:
        jobs = self._slurm.jobs()
        if ids:
            jobs = [job for job in jobs if ids[0] in (str(job.job_id), str(job.array_job_id), shown_id(job))]
            if not jobs:
                raise Refused("slurm_load_jobs error: Invalid job id specified")
        reply.out("\n".join(job_record(job) for job in jobs) + "\n" if jobs else "No jobs in the system\n")
        return 0

    def _show_nodes(self, names: Sequence[str], reply: Reply) -> int:
        states = self._slurm.node_states()
        wanted = [name for text in names for name in expand_hosts(text)] or list(states)
        for name in wanted:
            if name not in states:
                raise Refused(f"Node {name} not found")
        running = [job for job in self._slurm.jobs() if job.state in (JobState.RUNNING, JobState.CONFIGURING)]
        records = [
            node_record(
                name, states[name], self._slurm.settings.cpus_per_node, sum(name in job.nodes for job in running)
            )
            for name in wanted
        ]
        reply.out("\n".join(records) + "\n")
        return 0


def _matching(jobs: Sequence[Job], text: str) -> list[int] | None:
    """Ids of the jobs that `5`, `5_2`, `5_[0-3]` or `7+1` names; None when it is none of them."""
    job_id, _, tasks = text.partition("_")
    if text.isdigit():
        return (
            [int(text)]
            if any(text in (str(job.job_id), str(job.array_job_id), str(job.het_job_id)) for job in jobs)
            else []
        )
    if job_id.isdigit() and tasks:
        try:
            numbers = {part.array_task_id for part in jobs} & set(_task_numbers(tasks.strip("[]")))
        except ValueError:
            return None
        return [job.job_id for job in jobs if str(job.array_job_id) == job_id and job.array_task_id in numbers]
    if "+" in text:
        return [job.job_id for job in jobs if job.het_job_id is not None and shown_id(job) == text]
    return None


def _task_numbers(text: str) -> list[int]:
    from ..slurm.slurm_parse import task_ids

    return task_ids(text)


class _Srun:
    """One srun: runs to its end, its output shown as it comes; cancelled when the client hangs up."""

    def __init__(self, slurm: Slurm, place: Place, reply: Reply) -> None:
        self._slurm = slurm
        self._spool = place.directory / "slurm" / "spool"
        self._reply = reply
        self._job_id: int | None = None
        self._finished: Finished | None = None
        self._problem: BaseException | None = None
        self._sent = {"stdout": 0, "stderr": 0}
        self._read = {"stdout": 0, "stderr": 0}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._sent}

    def run(self, command: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> int:
        def srun() -> None:
            try:
                self._finished = self._slurm.srun(
                    command, options, env=environment, timeout_s=FOR_EVER_S, on_job_id=self._know
                )
            except BaseException as error:
                self._problem = error

        thread = threading.Thread(target=srun, name="srun", daemon=True)
        thread.start()
        queued = cancelled = False
        while thread.is_alive():
            thread.join(POLL_S)
            if self._job_id is None:
                continue
            job = self._slurm.job(self._job_id)
            if job.state is JobState.PENDING and not queued and thread.is_alive():
                queued = True
                self._reply.err(f"srun: job {job.job_id} queued and waiting for resources\n")
            elif queued and job.state is not JobState.PENDING and not job.state.ended:
                queued = False
                self._reply.err(f"srun: job {job.job_id} has been allocated resources\n")
            if ":" not in options:
                self._follow()
            if not cancelled and self._reply.hung_up():
                cancelled = True
                self._slurm.scancel(job.job_id)
        if self._problem is not None:
            raise self._problem
        assert self._finished is not None
        self._reply.out(self._finished.stdout[self._sent["stdout"] :])
        self._reply.err(self._finished.stderr[self._sent["stderr"] :])
        return self._finished.returncode

    def _know(self, job_id: int) -> None:
        self._job_id = job_id

    def _follow(self) -> None:
        """Send what the job has printed since."""
        for name, send in (("stdout", self._reply.out), ("stderr", self._reply.err)):
            path = self._spool / f"job{self._job_id:05d}" / name
            try:
                with path.open("rb") as file:
                    file.seek(self._read[name])
                    data = file.read(1 << 20)
            except FileNotFoundError:
                continue
            self._read[name] += len(data)
            text = self._decoders[name].decode(data)
            self._sent[name] += len(text)
            send(text)
