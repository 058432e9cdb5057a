"""What a timer finishes, and what an admin reads: reconcile, show, check, keygen."""

from __future__ import annotations

import os
import stat

import pytest

HEADER = "JOBID STATE\n"


def reconcile(site, queue, *args, **kwargs):
    """`juice_hook.py reconcile --queue -` by hand, with `queue` on standard input."""
    return site.shell("juice_hook.py", "reconcile", "--queue", "-", *args, input=queue, **kwargs)


def age(site):
    """Make the journal and all files of jobs older than the grace time."""
    for path in (site.state / "journal").glob("*.json"):
        attempts = site.attempts(int(path.stem))
        for attempt in attempts:
            attempt["at"] -= 1000
        site.hook.run(site.hook.write_journal(int(path.stem), attempts), site.machine())
    for folder in ("journal", "sessions"):
        for path in (site.state / folder).iterdir():
            os.utime(path, (path.stat().st_mtime - 1000,) * 2, follow_symlinks=False)


def test_a_job_that_is_gone_is_released(site, juice):
    assert site.prolog(job_id=1) == 0
    assert site.prolog(job_id=2) == 0
    age(site)
    result = reconcile(site, HEADER + "2 RUNNING\n")
    assert result.returncode == 0, result.stdout
    assert [s["name"] for s in juice.settled()] == ["c1/2/0"]
    assert site.leftovers() == ["2.json", "2.session"]
    assert "1 session(s) released" in result.stdout


def test_what_is_younger_than_the_grace_time_is_left_alone(site, juice):
    assert site.prolog() == 0
    assert reconcile(site, HEADER).returncode == 0
    assert len(juice.settled()) == 1
    assert site.fields()["verdict"] == "granted"


def test_dry_run_changes_nothing(site, juice):
    assert site.prolog() == 0
    age(site)
    before = (site.state / "journal" / "12.json").read_bytes()
    result = reconcile(site, HEADER, "--dry-run")
    assert "would DELETE /v1/session/" in result.stdout and "would remove sessions/12.session" in result.stdout
    assert len(juice.settled()) == 1
    assert (site.state / "journal" / "12.json").read_bytes() == before
    assert site.fields()["verdict"] == "granted"


def test_an_earlier_start_and_a_pending_job_own_nothing(site, juice):
    assert site.prolog(job_id=1) == 0
    assert site.prolog(job_id=2) == 0
    age(site)
    assert reconcile(site, "1 2 RUNNING\n2 0 PENDING\n").returncode == 0
    assert juice.settled() == []


@pytest.mark.parametrize(
    "queue", ["", "\n", "slurm_load_jobs error: Unable to contact slurm controller\n", "12 RUNNING x y\n"]
)
def test_a_failed_squeue_releases_nothing(queue, site, juice):
    assert site.prolog() == 0
    age(site)
    result = reconcile(site, queue)
    assert result.returncode == 1
    assert "squeue" in result.stdout
    assert len(juice.settled()) == 1


def test_an_old_list_in_a_file_is_refused(site, juice, tmp_path):
    path = tmp_path / "queue"
    path.write_text(HEADER)
    os.utime(path, (1, 1))
    assert site.prolog() == 0
    age(site)
    result = site.shell("juice_hook.py", "reconcile", "--queue", str(path))
    assert result.returncode == 1 and "older than" in result.stdout
    os.utime(path)
    assert site.shell("juice_hook.py", "reconcile", "--queue", str(path)).returncode == 0
    assert juice.settled() == []


def test_without_a_list_only_what_is_due_is_released(site, juice):
    assert site.prolog(job_id=1) == 0
    assert site.prolog(job_id=2) == 0
    juice.faults({"method": "DELETE", "path": "/v1/session", "action": "status", "status": 503, "retry_after": "100"})
    assert site.epilog(job_id=1) == 1
    assert "stays in the journal" in site.log()
    juice.call("DELETE", "/v1/faults")
    age(site)
    assert site.shell("juice_hook.py", "reconcile").returncode == 0
    assert [s["name"] for s in juice.settled()] == ["c1/2/0"]
    assert site.fields(2)["verdict"] == "granted"


def test_a_session_that_no_journal_names_is_released(site, juice):
    assert site.prolog(job_id=1) == 0
    assert site.prolog(job_id=2) == 0
    for job in (1, 2):
        (site.state / "journal" / f"{job}.json").unlink()
    # Not ours: another cluster's, and one that somebody made by hand.
    juice.call("POST", "/v1/request/session", {"poolId": juice.pool_id, "gpus": [{}], "name": "other/1/0"})
    juice.call("POST", "/v1/request/session", {"poolId": juice.pool_id, "gpus": [{}], "name": "c1/by hand"})
    assert site.reconcile({2: (None, "RUNNING")}, later_s=1000) == 0
    assert sorted(s["name"] for s in juice.sessions() if s["state"] != "canceling") == [
        "c1/2/0",
        "c1/by hand",
        "other/1/0",
    ]
    assert "job 2 is in no journal, but the job is there" in site.log()


def test_stale_files_are_removed(site, juice):
    assert site.prolog(job_id=1) == 0
    for path in ("sessions/9.session", "sessions/1.session.77.aa.tmp", "journal/9.json.77.aa.tmp"):
        (site.state / path).write_bytes(b"")
    (site.state / "sessions" / "link.session").symlink_to("/etc/passwd")
    age(site)
    assert site.reconcile(None, later_s=0) == 0
    assert site.leftovers() == ["1.json", "1.session"]


def test_a_damaged_journal_against_a_controller_without_a_list_is_kept_and_told(juice_of, site_of):
    juice = juice_of(quirks="open-source")
    site = site_of(url=juice.url, token=juice.server.admin_token, pools=f"test={juice.pool_id}", wait=15)
    assert site.prolog() == 0
    (site.state / "journal" / "12.json").write_bytes(b"\0" * 100)
    assert site.epilog() == 1
    age(site)
    assert site.reconcile({}, later_s=0) == 1
    assert "then remove this file" in site.log()
    assert [name for name in site.leftovers() if name.endswith(".damaged")]


def test_parse_queue(hook):
    assert hook.parse_queue("JOBID STATE\n") == {}
    assert hook.parse_queue("12 RUNNING\n13 PENDING\n") == {12: (None, "RUNNING"), 13: (None, "PENDING")}
    assert hook.parse_queue("JOBID RESTARTS STATE\n12 3 COMPLETING\n") == {12: (3, "COMPLETING")}
    assert hook.parse_queue("12 NODE_FAIL\n") == {12: (None, "NODE_FAIL")}


def test_show_masks_the_secrets(site, juice):
    assert site.prolog() == 0
    session = site.fields()["session_id"]
    result = site.shell("juice_hook.py", "show", "12")
    assert result.returncode == 0
    assert "verdict=granted" in result.stdout and "start 0: asked" in result.stdout
    assert session not in result.stdout and session[:8] in result.stdout
    assert "127.0.0.1:43210" not in result.stdout
    assert site.shell("juice_hook.py", "show", "13").returncode == 0
    assert site.shell("juice_hook.py", "show", "x").returncode == 1
    (site.state / "journal" / "12.json").write_bytes(b"")
    assert "damaged" in site.shell("juice_hook.py", "show", "12").stdout


def test_check_says_what_works(site, juice):
    result = site.shell("juice_hook.py", "check")
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    assert all(line.startswith("OK") for line in lines)
    for word in ("key file", "libsodium", "controller", "token", "pools"):
        assert any(word in line for line in lines), word
    assert "expires" in result.stdout and "test" in lines[-1]


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"token": "m2m-wrong"}, "401"), ({"url": "http://127.0.0.1:9"}, "ECONNREFUSED"), ({"wait": "x"}, "JUICE_WAIT")],
)
def test_check_says_what_fails(settings, word, site, juice):
    site.token, site.url = settings.get("token", site.token), settings.get("url", site.url)
    site.install(**{k: v for k, v in settings.items() if k == "wait"})
    result = site.shell("juice_hook.py", "check")
    assert result.returncode == 1
    assert any(line.startswith("FAIL") and word in line for line in result.stdout.splitlines()), result.stdout


def test_check_against_the_open_source_controller(juice_of, site_of):
    juice = juice_of(quirks="open-source")
    site = site_of(url=juice.url, token=juice.server.admin_token)
    result = site.shell("juice_hook.py", "check")
    assert result.returncode == 1 and "set JUICE_POOLS" in result.stdout
    site.install(pools=f"test={juice.pool_id}")
    assert site.shell("juice_hook.py", "check").returncode == 0


def test_keygen_makes_a_key_and_never_replaces_one(site):
    key = site.hooks / "session.key"
    old = key.read_bytes()
    result = site.shell("juice_hook.py", "keygen")
    assert result.returncode == 1 and "EEXIST" in result.stdout
    assert key.read_bytes() == old
    key.unlink()
    assert site.shell("juice_hook.py", "keygen").returncode == 0
    assert len(key.read_bytes()) == 32 and key.read_bytes() != old
    assert stat.S_IMODE(key.stat().st_mode) == 0o400
    assert [p.name for p in site.hooks.iterdir() if "tmp" in p.name] == []


def test_by_hand_without_a_job_is_told_what_is_missing(site):
    result = site.shell("juice_hook.py", "prolog")
    assert result.returncode == 1
    assert "SLURM_JOB_ID" in result.stderr + site.log()
    assert "Traceback" not in result.stderr


def test_help_and_a_wrong_verb(site):
    assert "usage" in site.shell("juice_hook.py", "--help").stdout
    assert site.shell("juice_hook.py").returncode == 0
    assert site.shell("juice_hook.py", "frobnicate").returncode == 2
    assert site.shell("juice_hook.py", "reconcile", "--queue").returncode == 2


def test_a_full_disk_keeps_no_gpu_from_being_released(site, juice):
    assert site.prolog(job_id=1) == 0

    class FullDisk(type(site.machine())):
        def write_file(self, name, data, mode):
            raise OSError(28, "No space left on device", name)

    hook = site.hook
    assert hook.run(hook.epilog(site.job(job_id=1), site.settings), FullDisk(site, "epilog", 0.0)) == 0
    assert juice.settled() == [] and site.leftovers() == []
    assert hook.run(hook.prolog(site.job(job_id=2), site.settings), FullDisk(site, "prolog", 0.0)) == 1
    assert "ENOSPC" in site.log()
    assert juice.settled() == []


@pytest.mark.parametrize("point", [1, 2])
def test_a_disk_that_fills_up_during_the_prolog_leaves_no_session(point, site, juice):
    class FillingDisk(type(site.machine())):
        writes = 0

        def write_file(self, name, data, mode):
            self.writes += 1
            if self.writes > point:
                raise OSError(28, "No space left on device", name)
            super().write_file(name, data, mode)

    hook = site.hook
    assert site.prolog(job_id=1) == 0
    assert hook.run(hook.prolog(site.job(job_id=2), site.settings), FillingDisk(site, "prolog", 0.0)) == 1
    assert "ENOSPC" in site.log()
    assert [s["name"] for s in juice.settled()] == ["c1/1/0"]
    assert site.epilog(job_id=2) == 0
    assert site.leftovers() == ["1.json", "1.session"]


def test_ended_jobs_in_the_list_own_nothing(site, juice):
    assert site.prolog(job_id=1) == 0
    assert site.prolog(job_id=2) == 0
    age(site)
    assert reconcile(site, "1 COMPLETED\n2 COMPLETING\n").returncode == 0
    assert [s["name"] for s in juice.settled()] == ["c1/2/0"]
