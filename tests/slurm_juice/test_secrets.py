"""Token, session key and session ids: looked for where they must not be, while jobs run and afterwards."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.slurm_site import Site
from fake_cluster.slurm.interface import JobState
from juice_sim.wire_types import FaultRule

from .secrets_search import Sampler, in_files, patterns_of_key

pytestmark = [pytest.mark.slurm, pytest.mark.compiler, pytest.mark.timeout(300)]

HOLD = "env >env-$SLURM_JOB_ID; while [ ! -e go ]; do sleep 0.1; done"


@dataclass
class Run:
    """A site in which jobs have run, and what was sampled meanwhile. `sessions`: id -> job id."""

    site: Site
    sampler: Sampler
    secrets: dict[str, bytes]
    sessions: dict[str, int]
    user_id: int
    environments: dict[int, str]
    shown: str

    @property
    def session_patterns(self) -> dict[str, bytes]:
        return {session: session.encode() for session in self.sessions}

    @property
    def everything(self) -> dict[str, bytes]:
        return {**self.secrets, **self.session_patterns}


@pytest.fixture(scope="module")
def run(site: Site) -> Iterator[Run]:
    """Jobs of two users: granted, requeued for want of a GPU, cancelled, denied, one interactive."""
    if os.geteuid() != 0:
        pytest.skip("what another user can see shows only where jobs of two users can run: as root")
    nobody, daemon = pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("daemon").pw_uid
    token = (site.hooks_dir / "token").read_bytes().strip()
    admin = (site.service.calls.token or "").encode()
    assert len(token) > 20 and len(admin) > 20
    secrets = {"token": token, "admin's token": admin, **patterns_of_key(site.key_file.read_bytes())}
    with site.client() as client, Sampler() as sampler:
        client.set_faults(FaultRule(method="POST", path="/v1/request/session", action="delay", seconds=0.4))
        holding = [
            site.slurm.sbatch(HOLD, ["--juice-pool=test", "--output=/dev/null"], user_id=user, cwd=site.work_dir)
            for user in (nobody, daemon)
        ]
        denied = site.slurm.sbatch("true", ["--juice-pool=none", "--output=denied-%j.out"], user_id=nobody)
        whole = site.slurm.sbatch("true", ["--juice-pool=test", "--juice-gpu-count=4"], user_id=nobody)
        for job in holding:
            site.slurm.wait(job, until=lambda job: job.state is JobState.RUNNING)
        assert site.slurm.srun(["true"], ["--juice-pool=test", "--juice-vram=1"], user_id=daemon).returncode == 0
        site.slurm.wait(whole, until=lambda job: job.restarts > 0)
        shown = site.shell("scontrol -d show job; squeue -a -o '%all'; sinfo -o '%all'; scontrol show config").stdout
        site.slurm.scancel(whole)
        (site.work_dir / "go").touch()
        for job in (*holding, denied, whole):
            site.slurm.wait(job)
        sessions = {
            session.id: int(session.name.rsplit("/", 2)[1])
            for session in client.sessions(everything=True)
            if "/" in session.name
        }
    environments = {job: (site.work_dir / f"env-{job}").read_text() for job in holding}
    assert sampler.rounds > 10 and sampler.hooks > 10
    yield Run(site, sampler, secrets, sessions, nobody, environments, shown)


def test_no_process_shows_token_or_key(run: Run) -> None:
    assert list(run.sampler.finds(run.secrets)) == []


def test_a_session_is_seen_in_its_own_job_only(run: Run) -> None:
    seen = list(run.sampler.finds(run.session_patterns))
    assert [find for find in seen if find.where == "environ" and find.user_id != 0], "the sampler has seen no job"
    foreign = [find for find in seen if find.where == "argv" or find.job_id != run.sessions[find.what]]
    assert foreign == []


def test_no_log_and_no_file_of_slurm_holds_any(run: Run) -> None:
    slurm = run.site.real.layout
    for directory in (slurm.log, slurm.state, slurm.spool, slurm.run, slurm.conf.parent):
        read, found = in_files(directory, run.everything)
        assert found == []
        assert read or directory in (slurm.spool, slurm.run)
    logs = [
        run.site.state_dir / "hooks.log",
        *run.site.directory.glob("juice/*.log"),
        *run.site.directory.glob("juice/*.out"),
    ]
    assert len(logs) >= 4 and b"granted" in logs[0].read_bytes()
    for log in logs:
        text = log.read_bytes()
        assert [name for name, pattern in run.everything.items() if pattern in text] == [], log


def test_slurm_shows_none(run: Run) -> None:
    assert "JobId=" in run.shown
    assert [name for name, pattern in run.everything.items() if pattern.decode("latin-1") in run.shown] == []


def test_the_state_directory_shows_none_to_others(run: Run) -> None:
    """Sealed session files may be read by all. Session ids in clear are in the journal, which is SlurmUser's alone."""
    state = run.site.state_dir
    job = run.site.slurm.sbatch("sleep 600", ["--juice-pool=test", "--output=/dev/null"], user_id=run.user_id)
    try:
        run.site.slurm.wait(job, until=lambda job: job.state is JobState.RUNNING)
        (mine,) = [name for name, (owner, _) in run.site.open_sessions().items() if owner == job]
        patterns = {**run.everything, "open session": mine.encode()}
        _, as_root = in_files(state, patterns)
        assert as_root == [f"open session in {state}/journal/{job}.json"]
        read, as_other = in_files(state, patterns, run.user_id)
        assert as_other == []
        sealed = state / "sessions" / f"{job}.session"
        assert read >= 2 and stat.S_IMODE(sealed.stat().st_mode) == 0o644  # it was read, and shows nothing
        modes = {name: stat.S_IMODE((state / name).stat().st_mode) for name in ("journal", "locks", "sessions", "")}
        assert modes == {"journal": 0o700, "locks": 0o700, "sessions": 0o755, "": 0o755}
        assert stat.S_IMODE((state / "journal" / f"{job}.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((state / "hooks.log").stat().st_mode) & 0o007 == 0
    finally:
        run.site.slurm.scancel(job)
        run.site.slurm.wait(job)


def test_another_user_finds_none_below_the_whole_site(run: Run) -> None:
    """Configuration, token, key, the controller's data: nothing of it opens for others."""
    read, found = in_files(run.site.directory, run.secrets, run.user_id)
    assert found == []
    assert read > 10
    _, as_root = in_files(run.site.directory, run.secrets)
    assert any("token" in find for find in as_root) and any("session.key" in find for find in as_root)


def test_a_job_gets_its_session_and_no_token(run: Run) -> None:
    for job, text in run.environments.items():
        assert [name for name, pattern in run.secrets.items() if pattern.decode("latin-1") in text] == []
        own = [session for session, owner in run.sessions.items() if owner == job]
        assert [session for session in run.sessions if session in text] == own
        assert "JUICE_TOKEN" not in text and "session.key" not in text


def test_the_search_finds_what_was_planted(run: Run, tmp_path: Path) -> None:
    """The same search, where a token does lie about."""
    token = run.secrets["token"].decode()
    log = tmp_path / "slurmctld.log"
    log.write_text(f"a hook said: Authorization: Bearer {token}\n")
    (tmp_path / "hex").write_text(run.secrets["key in hex"].decode())
    assert sorted(in_files(tmp_path, run.secrets)[1]) == [f"key in hex in {tmp_path}/hex", f"token in {log}"]
    sampler = Sampler()
    command = ["/bin/sh", "-c", "read line", "sh"]
    with (
        subprocess.Popen([*command, token], stdin=subprocess.PIPE, env={}) as argv,
        subprocess.Popen(command, stdin=subprocess.PIPE, env={"T": token, "SLURM_JOB_ID": "7"}) as environ,
    ):
        sampler.round()
        for process in (argv, environ):
            process.communicate(b"\n")
    found = sorted((find.what, find.where, find.job_id) for find in sampler.finds(run.secrets))
    assert found == [("token", "argv", 0), ("token", "environ", 7)]
