"""One test per public report that concerns the hooks; see docs/ for where each was seen. Names carry the report."""

from __future__ import annotations

import email.utils
import os
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

GIB = 1 << 30
REQUEST = "/v1/request/session"


def test_slurm_bug_11574_a_503_and_then_200(site, juice):
    juice.faults({"method": "POST", "path": REQUEST, "count": 1, "action": "status", "status": 503})
    assert site.prolog() == 0
    assert "HTTP 503" in site.log()
    assert len(juice.settled()) == 1


def test_slurm_bug_10267_scancel_while_the_reservation_is_in_flight(site, juice, wait_for):
    juice.held.set()  # the session stays assigned, so that the prolog waits
    hook = subprocess.Popen([site.hooks / "juice-prolog.sh"], env=site.environment(), start_new_session=True)
    wait_for(juice.sessions)
    os.killpg(hook.pid, signal.SIGKILL)
    hook.wait()
    juice.held.clear()
    assert site.shell("juice-epilog.sh", env=site.environment()).returncode == 0
    assert juice.settled() == []
    assert site.leftovers() == []


def test_slurm_ticket_23482_two_real_prologs_at_once(site, juice):
    env = site.environment()
    hooks = [subprocess.Popen([site.hooks / "juice-prolog.sh"], env=env) for _ in range(4)]
    assert [hook.wait(60) for hook in hooks] == [0, 0, 0, 0]
    open_sessions = juice.settled()
    assert [s["id"] for s in open_sessions] == [site.fields()["session_id"]]
    assert site.shell("juice-epilog.sh", env=env).returncode == 0
    assert juice.settled() == []


def test_slurm_bug_11882_killed_in_the_middle_of_the_request(site, juice, wait_for):
    juice.faults({"method": "POST", "path": REQUEST, "action": "drop_after", "count": 1},
                 {"method": "POST", "path": REQUEST, "action": "hang", "count": 1})  # fmt: skip
    hook = subprocess.Popen([site.hooks / "juice-prolog.sh"], env=site.environment(), start_new_session=True)
    wait_for(lambda: juice.call("GET", "/v1/faults")[1]["fired"])
    os.killpg(hook.pid, signal.SIGKILL)
    hook.wait()
    assert len(juice.sessions()) == 1  # the server made it, and nobody was told
    assert site.shell("juice-epilog.sh", env=site.environment()).returncode == 0
    assert juice.settled() == []


def test_slurm_bug_13657_one_component_of_a_het_job_cannot_be_served(site, juice):
    assert site.prolog(job_id=20, GPU_COUNT="1") == 0
    assert site.prolog(job_id=21, GPU_COUNT="2") == 1  # only one GPU is left
    for job_id in (21, 20):  # Slurm requeues the whole job, and runs the epilog of each component
        assert site.epilog(job_id=job_id) == 0
    assert juice.settled() == []


def test_slurm_23_02_one_task_of_an_array_fails_alone(site, juice):
    assert site.prolog(job_id=31) == 0
    assert site.prolog(job_id=32, GPU_COUNT="0") == 0
    assert site.prolog(job_id=33) == 0
    assert [site.fields(job)["verdict"] for job in (31, 32, 33)] == ["granted", "denied", "granted"]
    assert len(juice.settled()) == 2


def test_slurm_23_02_no_child_holds_a_descriptor(site, juice):
    for name in ("juice-prolog.sh", "juice-epilog.sh"):
        read, write = os.pipe()
        hook = subprocess.Popen([site.hooks / name], env=site.environment(), stdout=write, stderr=write)
        os.close(write)
        assert hook.wait(60) == 0
        os.set_blocking(read, False)
        assert os.read(read, 10) == b""  # end of file: nobody has the other end any more
        os.close(read)


def test_submitit_1660_the_same_job_id_comes_again(site, juice, hook):
    assert site.prolog(uid=1000) == 0
    old = site.fields(uid=1000)["session_id"]  # its epilog never ran
    assert site.prolog(uid=1001) == 0
    assert site.fields(uid=1001)["session_id"] != old
    assert len(juice.settled()) == 1
    with pytest.raises(hook.SessionFileError):
        site.fields(uid=1000)


def test_cc_backend_30_the_same_job_id_after_a_counter_wrap(site, juice):
    assert site.prolog(restart=3) == 0
    old = site.fields()["session_id"]
    later = site.machine("prolog", later_s=10 * 86400.0)
    assert site.hook.run(site.hook.prolog(site.job(restart=0), site.settings), later) == 0
    assert site.fields()["restart_count"] == "0"
    assert [s["id"] for s in juice.settled()] == [site.fields()["session_id"]] != [old]


def test_cc_backend_30_an_old_start_that_cannot_be_released_does_not_stop_the_new_job(site, juice):
    assert site.prolog(restart=3) == 0
    juice.faults({"method": "DELETE", "path": "/v1/session", "action": "status", "status": 409})
    later = site.machine("prolog", later_s=10 * 86400.0)
    assert site.hook.run(site.hook.prolog(site.job(restart=0), site.settings), later) == 0
    assert site.fields()["restart_count"] == "0"
    assert sorted((a["restart"], a["state"]) for a in site.attempts()) == [(0, "asked"), (3, "releasing")]
    juice.call("DELETE", "/v1/faults")
    assert site.reconcile(None, later_s=0) == 0
    assert [s["id"] for s in juice.settled()] == [site.fields()["session_id"]]


def test_cc_backend_30_a_released_job_id_never_meets_its_old_session(site, juice):
    seen = set()
    for _ in range(3):
        assert site.prolog() == 0
        seen.add(site.fields()["session_id"])
        assert site.epilog() == 0
    assert len(seen) == 3
    assert len(juice.sessions(everything=True)) == 3


def test_nvidia_dps_two_jobs_of_one_name(site, juice):
    assert site.prolog(job_id=1) == 0
    assert site.prolog(job_id=2) == 0
    assert {s["name"] for s in juice.settled()} == {"c1/1/0", "c1/2/0"}
    assert site.epilog(job_id=1) == 0
    assert [s["name"] for s in juice.settled()] == ["c1/2/0"]


def test_flux_core_6055_the_epilog_alone_releases(site, juice, process):
    hook = process(site, "prolog")
    while not juice.sessions():
        assert hook.step()
    hook.kill()
    assert site.attempts()[0]["session"] == ""  # not even its id was known
    assert site.epilog() == 0
    assert juice.settled() == []


def test_spur_520_the_log_carries_status_and_errno(site_of, juice):
    site = site_of(juice, wait=1)
    juice.faults({"method": "POST", "path": REQUEST, "action": "status", "status": 502, "body": "bad\ngateway"})
    assert site.prolog() == 1
    assert "HTTP 502" in site.log()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        site.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert site.prolog(job_id=13) == 1
    assert "ECONNREFUSED" in site.log()
    assert all("\x00" not in line for line in site.log().splitlines())


def test_spur_520_attempts_back_off(site_of, juice):
    site = site_of(juice, wait=3)
    juice.faults({"name": "down", "method": "POST", "path": REQUEST, "action": "status", "status": 503})
    assert site.prolog() == 1
    assert juice.call("GET", "/v1/faults")[0]["fired"] <= 8


def test_perses_3977_the_token_expires_between_reserve_and_release(site_of, juice):
    site = site_of(juice, token=juice.token(days=1)["token"])
    assert site.prolog() == 0
    juice.now_offset = 1.5 * 86400.0
    assert site.epilog() == 1
    assert "401" in site.log() and "renew it" in site.log()
    assert [a["state"] for a in site.attempts()] == ["releasing"]
    site.token = juice.token()["token"]
    assert site.reconcile(None) == 0
    assert juice.settled() == []
    assert site.leftovers() == []


def test_an_expired_token_requeues_and_leaves_no_debt(site_of, juice):
    site = site_of(juice, token="m2m-nonsense")
    for restart in range(3):
        assert site.prolog(restart=restart) == 1
        assert site.epilog(restart=restart) == 0
    assert "THE SITE MUST ACT" in site.log() and "401" in site.log()
    assert site.leftovers() == []


@pytest.mark.parametrize("kind", ["seconds", "date"])
def test_jira_129_retry_after_is_honoured(kind, site_of, juice):
    site = site_of(juice, wait=10)
    value = "2" if kind == "seconds" else email.utils.formatdate(time.time() + 3, usegmt=True)
    juice.faults(
        {"method": "POST", "path": REQUEST, "action": "status", "status": 429, "retry_after": value, "count": 1}
    )
    slept = []
    machine = site.machine("prolog")
    machine.sleep = slept.append
    assert site.hook.run(site.hook.prolog(site.job(), site.settings), machine) == 0
    assert 1.0 < slept[0] < 5.0


def test_jira_129_a_wait_beyond_the_limit_is_not_begun(site, juice):
    juice.faults({"method": "POST", "path": REQUEST, "action": "status", "status": 503, "retry_after": "600"})
    machine, slept = site.machine("prolog"), []
    machine.sleep = slept.append
    assert site.hook.run(site.hook.prolog(site.job(), site.settings), machine) == 1
    assert slept == []
    assert re.search(r"again in [67]\d\d s", site.log())


def test_jira_129_hooks_that_were_told_the_same_do_not_come_back_together(hook):
    reply = hook.Reply(429, {"retry-after": "4"})
    pauses = set()
    for jitter in ("0000", "8000", "ffff"):
        asking = hook.ask(100.0, "POST", REQUEST, "{}")
        answers = {hook.Clock: (0.0, 0.0), hook.Request: reply, hook.RandomHex: jitter, hook.Log: None}
        effect = next(asking)
        while not isinstance(effect, hook.Sleep):
            effect = asking.send(answers[type(effect)])
        pauses.add(effect.values[0])
    assert len(pauses) == 3 and min(pauses) >= 4


def test_anthropic_sdk_java_370_the_reply_is_lost_and_the_retry_gets_the_same_session(site, juice):
    juice.faults({"method": "POST", "path": REQUEST, "action": "drop_after", "count": 2})
    assert site.prolog() == 0
    assert len(juice.sessions(everything=True)) == 1


def test_gribi_68_the_second_delete_is_a_404(site, juice):
    assert site.prolog() == 0
    juice.faults({"method": "DELETE", "path": "/v1/session", "action": "status", "status": 404, "count": 1})
    assert site.epilog() == 0
    assert site.leftovers() == []


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 500, b'{"attempts": [{"key"', b"[1]", b'{"attempts": [{}]}', b"\xff\xfe"]
)
def test_edda_1190_a_damaged_journal_loses_no_session(damage, site, juice):
    assert site.prolog() == 0
    (site.state / "journal" / "12.json").write_bytes(damage)
    assert site.epilog() == 0
    assert "damaged" in site.log()
    assert juice.settled() == []
    assert site.reconcile({}) == 0
    assert site.leftovers() == []


def test_edda_1190_a_journal_damaged_before_the_next_start_loses_no_session(site, juice):
    assert site.prolog() == 0
    (site.state / "journal" / "12.json").write_bytes(b"")
    assert site.prolog(restart=1) == 0
    assert site.fields()["restart_count"] == "1"
    # The old one is more than the grace time old; Slurm has the job in its second start.
    juice.now_offset = 0.0
    assert site.reconcile({12: (1, "RUNNING")}) == 0
    assert [s["id"] for s in juice.settled()] == [site.fields()["session_id"]]
    assert [name for name in site.leftovers() if "damaged" in name] == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 500, b"garbage"])
def test_edda_1190_a_damaged_session_file_is_replaced_and_removed(damage, site, juice):
    assert site.prolog() == 0
    (site.state / "sessions" / "12.session").write_bytes(damage)
    assert site.prolog(restart=1) == 0
    assert site.fields()["restart_count"] == "1"
    (site.state / "sessions" / "12.session").write_bytes(damage)
    assert site.epilog(restart=1) == 0
    assert site.leftovers() == []


def test_ufm_sdk_104_a_token_file_that_others_can_read_is_refused_with_the_remedy(site, juice):
    (site.hooks / "token").chmod(0o644)
    result = site.shell("juice-prolog.sh", env=site.environment())
    assert result.returncode == 1
    assert f"chmod 0400 {site.hooks}/token" in site.log()
    assert juice.sessions() == []


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_nemo_gym_2354_modes_do_not_depend_on_the_umask(umask, site, juice):
    result = site.shell("juice-prolog.sh", env=site.environment(), preexec_fn=lambda: os.umask(umask))
    assert result.returncode == 0, site.log()
    mode = {p.relative_to(site.state).as_posix(): p.stat().st_mode & 0o777 for p in site.state.rglob("*")}
    assert mode["sessions"] == 0o755 and mode["sessions/12.session"] == 0o644
    assert mode["journal"] == 0o700 and mode["journal/12.json"] == 0o600
    assert mode["hooks.log"] == 0o640
    assert all(not p.stat().st_mode & 0o022 for p in (site.hooks / "__pycache__").rglob("*"))
    assert not (site.hooks / "__pycache__").stat().st_mode & 0o022


def test_slurm_mail_22_a_symlink_at_the_path_of_the_session_file(site, juice, tmp_path):
    assert site.prolog() == 0
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = site.state / "sessions" / "12.session"
    path.unlink()
    path.symlink_to(victim)
    assert site.prolog(restart=1) == 0
    assert not path.is_symlink()
    path.unlink()
    path.symlink_to(victim)
    assert site.epilog(restart=1) == 0
    assert victim.read_text() == "precious"
    assert not path.is_symlink()


def test_slurm_mail_22_a_symlink_in_place_of_the_journal_is_not_followed(site, juice, tmp_path):
    assert site.prolog(job_id=1) == 0
    (tmp_path / "victim").write_text("precious")
    (site.state / "journal" / "12.json").symlink_to(tmp_path / "victim")
    assert site.prolog() == 1
    assert "ELOOP" in site.log()
    assert (tmp_path / "victim").read_text() == "precious"


def test_slime_1714_proxy_variables_are_ignored(site, juice):
    proxy = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "ALL_PROXY")}
    assert site.shell("juice-prolog.sh", env={**site.environment(), **proxy}).returncode == 0


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate for 127.0.0.1 and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=juice",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_httpx_475_a_self_signed_certificate(certificate, juice_of, site_of):
    cert, key = certificate
    juice = juice_of(tls_cert=cert, tls_key=key)
    site = site_of(juice)
    assert site.shell("juice-prolog.sh", env=site.environment()).returncode == 1
    assert "JUICE_CA_FILE" in site.log()
    site.install(ca_file=cert)
    assert site.shell("juice-prolog.sh", env=site.environment()).returncode == 0, site.log()
    assert site.shell("juice-epilog.sh", env=site.environment()).returncode == 0
    assert juice.settled() == []


def test_ood_core_838_names_that_are_not_ascii_or_not_utf8(site, juice):
    env = {name.encode(): value.encode() for name, value in site.environment().items()}
    env.update({b"LANG": b"C", b"SLURM_JOB_NAME": "d\u00e9d\u00e9".encode("latin-1")})
    assert site.shell("juice-prolog.sh", env=env).returncode == 0, site.log()
    assert site.shell("juice-epilog.sh", env=env).returncode == 0
    env[b"SPANK_JUICE_POOL"] = b"d\xe9d\xe9"
    assert site.shell("juice-prolog.sh", env=env).returncode == 0
    assert "\\xe9" in site.fields()["reason"]
    juice.call("PUT", "/v1/pool", {"name": "d\u00e9d\u00e9"})
    env[b"SPANK_JUICE_POOL"] = "d\u00e9d\u00e9".encode()
    assert site.shell("juice-epilog.sh", env=env).returncode == 0
    assert site.shell("juice-prolog.sh", env=env).returncode == 0
    assert "pool" in site.fields()["reason"]  # the site's token may not see that one


def test_fake_gpu_operator_108_an_error_page_in_place_of_json(site, juice):
    juice.faults({"method": "GET", "path": "/v1/session", "action": "garbage", "count": 2})
    assert site.prolog() == 0
    juice.faults({"method": "*", "path": "/v1", "action": "garbage"})
    assert site.prolog(job_id=13) == 1
    assert "Traceback" not in site.log()


def test_hami_2156_0_is_an_error_and_2_to_the_63_is_denied(site, juice):
    for vram in ("0", str(2**63), "1e3", "4GB", "16Gi", "", "-1", "\u0661", str(2**64)):
        assert site.prolog(VRAM=vram) == 0
        assert site.fields()["verdict"] == "denied", vram
        assert "--juice-vram" in site.fields()["reason"]
    assert juice.sessions(everything=True) == []


def test_hami_2923_after_many_cycles_all_is_free_again(site_of, juice_of):
    juice = juice_of(gpus=1)
    site = site_of(juice)
    for job in range(1, 30):
        assert site.prolog(job_id=job, VRAM=str(5 * GIB)) == 0
        assert site.epilog(job_id=job) == 0
    assert site.prolog(job_id=99) == 0  # the whole GPU
    assert len(juice.settled()) == 1


def test_a_hundred_hooks_at_once(site_of, juice_of):
    juice = juice_of(gpus=64)
    site = site_of(juice, wait=30)
    before = threading.active_count()
    with ThreadPoolExecutor(16) as pool:
        codes = list(
            pool.map(lambda job: site.shell("juice-prolog.sh", env=site.environment(job)).returncode, range(1, 65))
        )
        assert codes == [0] * 64, site.log()
        assert len({site.fields(job)["session_id"] for job in range(1, 65)}) == 64
        codes = list(
            pool.map(lambda job: site.shell("juice-epilog.sh", env=site.environment(job)).returncode, range(1, 65))
        )
    assert codes == [0] * 64, site.log()
    assert juice.settled() == []
    assert site.leftovers() == []
    assert threading.active_count() == before
