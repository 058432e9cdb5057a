"""What the prolog makes of each situation: docs/design.md, exit codes and verdicts."""

from __future__ import annotations

import json
import socket
import time

import pytest

GIB = 1 << 30
OLD = "open-source"


def test_granted(site, juice, hook):
    assert site.prolog(VRAM=str(GIB), MATCH_LABELS="", TOLERATES="a=b") == 0
    fields = site.fields()
    session = juice.settled()[0]
    assert list(fields)[:3] == ["verdict", "restart_count", "sealed_at"]
    assert abs(int(fields["sealed_at"]) - time.time()) < 60
    assert fields["session_id"] == session["id"]
    assert fields["pool"] == "test" and fields["pool_id"] == juice.pool_id
    assert fields["address"] == "127.0.0.1:43210"
    assert fields["gpu_indexes"] in ("0", "1")
    assert fields["gpu_names"] == "A10  big"
    assert fields["vram_bytes"] == str(GIB)
    config = json.loads(fields["config"])
    assert config["id"] == session["id"] and config["servers"] == ["127.0.0.1:43210"] and config["accessToken"] == ""
    assert config["requirements"]["gpus"] == [{"vramRequired": GIB}]


def test_granted_two_whole_gpus(site, juice):
    assert site.prolog(GPU_COUNT="2") == 0
    fields = site.fields()
    assert sorted(fields["gpu_indexes"].split(",")) == ["0", "1"]
    assert fields["vram_bytes"] == f"{24 * GIB},{24 * GIB}"


def test_the_pool_may_be_given_by_its_id_or_by_the_sites_own_name(site_of, juice):
    site = site_of(juice, pools=f"mine={juice.pool_id.upper()}")
    for job, pool in enumerate((juice.pool_id, juice.pool_id.upper(), "mine", "test"), 1):
        assert site.prolog(job_id=job, POOL=pool, VRAM=str(GIB)) == 0
        assert site.fields(job)["pool"] == pool
        assert site.fields(job)["pool_id"] == juice.pool_id


def test_no_capacity_now_is_an_exit_1_that_leaves_nothing(site_of, juice):
    site = site_of(juice, wait=1)
    assert site.prolog(job_id=1, GPU_COUNT="2") == 0
    assert site.prolog(job_id=2) == 1
    assert [s["name"] for s in juice.settled()] == ["c1/1/0"]
    assert site.leftovers() == ["1.json", "1.session"]
    assert "no GPU became free in time" in site.log()


DENIALS = [
    ({"POOL": None, "GPU_COUNT": "1"}, "--juice-pool"),
    ({"POOL": ""}, "--juice-pool"),
    ({"POOL": " "}, "--juice-pool"),
    ({"POOL": "tset"}, 'unknown pool "tset"; known: test'),
    ({"POOL": "a\nb"}, "--juice-pool"),
    ({"POOL": "x" * 2048}, "--juice-pool"),
    ({"POOL": "00000000-0000-0000-0000-000000000000"}, "pool"),
    ({"GPU_COUNT": "0"}, "--juice-gpu-count"),
    ({"GPU_COUNT": ""}, "--juice-gpu-count"),
    ({"GPU_COUNT": "01"}, "--juice-gpu-count"),
    ({"GPU_COUNT": "+1"}, "--juice-gpu-count"),
    ({"GPU_COUNT": " 1"}, "--juice-gpu-count"),
    ({"GPU_COUNT": "\u0661"}, "--juice-gpu-count"),
    ({"GPU_COUNT": "1.0"}, "--juice-gpu-count"),
    ({"GPU_COUNT": "65"}, "--juice-gpu-count"),
    ({"GPU_COUNT": "99999999999999999999"}, "--juice-gpu-count"),
    ({"GPU_COUNT": "3"}, "refuses the request: HTTP 422"),
    ({"VRAM": str(26 * GIB)}, "refuses the request: HTTP 422"),
    ({"VRAM": "1", "GPU_COUNT": "2"}, "a slice of VRAM is for one GPU"),
    ({"VRAM_STRICT": "yes"}, "--juice-vram-strict"),
    ({"MATCH_LABELS": "a=b;c"}, "--juice-match-labels"),
    ({"MATCH_LABELS": "a=" + "b" * 2000}, "--juice-match-labels"),
    ({"TOLERATES": "a"}, "--juice-tolerates"),
    ({"TOLERATES": "a=1,a=2"}, "--juice-tolerates"),
]


@pytest.mark.parametrize(("wishes", "reason"), DENIALS)
def test_denied(wishes, reason, site, juice):
    assert site.prolog(**wishes) == 0
    fields = site.fields()
    assert fields["verdict"] == "denied"
    assert reason in fields["reason"]
    assert fields["reason"].isprintable()
    assert juice.sessions() == []
    assert site.epilog(**wishes) == 0
    assert site.leftovers() == []


def test_labels_and_strict_reach_the_controller(site, hook):
    body = hook.requirements(site.job(MATCH_LABELS="a=b,c=d", TOLERATES="t=1", VRAM_STRICT="1"))
    assert body["matchLabels"] == {"a": "b", "c": "d"} and "labelSelector" not in body
    assert body["tolerates"] == {"t": "1"} and body["vramStrict"] is True
    body = hook.requirements(site.job(MATCH_LABELS="a in (b,c),d!=e"))
    assert body["labelSelector"] == "a in (b,c),d!=e" and "matchLabels" not in body


def test_403_is_the_sites_fault(site_of, juice):
    site = site_of(juice, token=juice.call("POST", "/v1/m2m", {"description": "no permission"})["token"])
    assert site.prolog(POOL=juice.pool_id) == 1
    assert "THE SITE MUST ACT" in site.log() and "403" in site.log()
    assert juice.sessions() == [] and site.leftovers() == []


def rewrite(path, data):
    path.chmod(0o600)
    path.write_bytes(data)


FAULTS = [
    ("no key", lambda site: (site.hooks / "session.key").unlink(), "keygen"),
    ("key readable by others", lambda site: (site.hooks / "session.key").chmod(0o444), "chmod 0400"),
    ("short key", lambda site: rewrite(site.hooks / "session.key", b"x" * 31), "32 random bytes"),
    ("null key", lambda site: rewrite(site.hooks / "session.key", bytes(32)), "32 random bytes"),
    ("state directory writable by others", lambda site: site.state.chmod(0o777), "chmod go-w"),
    ("state directory missing", lambda site: site.state.rename(site.base / "elsewhere"), "ENOENT"),
    (
        "state directory of another cluster",
        lambda site: (site.state / "cluster").write_text("other"),
        'by cluster "other"',
    ),
    ("file for a directory", lambda site: (site.state / "sessions").write_text(""), "not a directory"),
    ("empty token", lambda site: rewrite(site.hooks / "token", b""), "empty"),
    ("token on two lines", lambda site: rewrite(site.hooks / "token", b"m2m\nx"), "on one line"),
    ("no token file", lambda site: (site.hooks / "token").unlink(), "ENOENT"),
]


@pytest.mark.parametrize(("name", "breaks", "remedy"), FAULTS, ids=[name for name, _, _ in FAULTS])
def test_site_faults_are_loud_and_requeue(name, breaks, remedy, site, juice):
    breaks(site)
    result = site.shell("juice-prolog.sh", env=site.environment())
    assert result.returncode == 1
    text = site.log() + result.stderr
    assert "THE SITE MUST ACT" in text and remedy in text
    assert "Traceback" not in text
    assert juice.sessions(everything=True) == []


SETTINGS = [
    ({"wait": "soon"}, "JUICE_WAIT"),
    ({"wait": "0"}, "JUICE_WAIT"),
    ({"wait": "nan"}, "JUICE_WAIT"),
    ({"pools": "test"}, "JUICE_POOLS"),
    ({"pools": "test=1"}, "JUICE_POOLS"),
    ({"ca_file": "/nonexistent", "url": "https://127.0.0.1:9"}, "ECONNREFUSED"),
    ({"url": "ftp://x"}, "https://"),
    ({"url": "https://user:secret@host"}, "JUICE_CONTROLLER"),
    ({"url": "https://"}, "JUICE_CONTROLLER"),
    ({"url": "http://8.8.8.8"}, "JUICE_ALLOW_HTTP"),
    ({"url": "http://[2001:4860:4860::8888]:80"}, "JUICE_ALLOW_HTTP"),
]


@pytest.mark.parametrize(("settings", "text"), SETTINGS)
def test_wrong_settings_are_named(settings, text, site_of):
    settings = {"wait": 1, **settings}
    site = site_of(url=settings.pop("url", "http://127.0.0.1:9"), token="m2m-x", **settings)
    result = site.shell("juice-prolog.sh", env=site.environment(POOL="00000000-0000-0000-0000-000000000000"))
    assert result.returncode == 1
    assert text in site.log() + result.stderr


@pytest.mark.parametrize(
    ("family", "address", "public"),
    [
        (socket.AF_INET, "127.0.0.1", False),
        (socket.AF_INET, "10.1.2.3", False),
        (socket.AF_INET, "172.31.0.1", False),
        (socket.AF_INET, "172.32.0.1", True),
        (socket.AF_INET, "192.168.1.1", False),
        (socket.AF_INET, "169.254.1.1", False),
        (socket.AF_INET, "8.8.8.8", True),
        (socket.AF_INET6, "::1", False),
        (socket.AF_INET6, "::2", True),
        (socket.AF_INET6, "fe80::1%lo", False),
        (socket.AF_INET6, "fd00::1", False),
        (socket.AF_INET6, "::ffff:10.0.0.1", False),
        (socket.AF_INET6, "::ffff:8.8.8.8", True),
        (socket.AF_INET6, "2001:db8::1", True),
    ],
)
def test_which_addresses_are_public(family, address, public, hook):
    assert hook.is_public(family, address) is public


def test_against_the_open_source_controller(juice_of, site_of):
    juice = juice_of(quirks=OLD)
    site = site_of(url=juice.url, token=juice.server.admin_token, pools=f"test={juice.pool_id}", wait=15)
    assert site.prolog() == 0, site.log()
    # That controller gives every GPU that satisfies the one requirement.
    assert (site.fields()["gpu_indexes"], site.fields()["gpu_names"]) == ("0,1", "A10  big,A10  big")
    assert site.epilog() == 0
    assert juice.settled() == []
    assert site.leftovers() == []


def test_the_open_source_controller_cannot_list_pools(juice_of, site_of):
    juice = juice_of(quirks=OLD)
    site = site_of(url=juice.url, token=juice.server.admin_token, wait=3)
    assert site.prolog() == 1
    assert "set JUICE_POOLS" in site.log()
    site.install(pools=f"big={juice.pool_id}")
    assert site.prolog() == 0
    assert site.fields()["reason"] == 'unknown pool "test"; known: big'


def test_the_open_source_controller_forgets_a_request_for_an_unknown_pool(juice_of, site_of):
    juice = juice_of(quirks=OLD)
    site = site_of(url=juice.url, token=juice.server.admin_token)
    machine, asked = site.machine("prolog"), []
    request = machine.request
    machine.request = lambda *values: asked.append(values[:2]) or request(*values)
    unknown = "00000000-0000-0000-0000-000000000000"
    assert site.hook.run(site.hook.prolog(site.job(POOL=unknown), site.settings), machine) == 0
    # It does not go on asking for a session that the controller does not have.
    assert [method for method, _ in asked] == ["POST", "GET", "GET", "DELETE"]
    assert asked[2] == ("GET", f"/v1/pool/{unknown}")
    assert "no pool" in site.fields()["reason"]
    assert site.epilog() == 0
    assert site.leftovers() == []


def test_requests_stay_below_4096_bytes(site_of, hook):
    site = site_of(url="http://127.0.0.1:9", token="m2m" + "x" * 1000)
    sent = []

    class Recorder(type(site.machine())):
        def request(self, method, path, body, key, timeout):
            sent.append(len(body or "") + len(path))
            return super().request(method, path, body, key, timeout)

    labels = ",".join(f"label{i}=value{i}" for i in range(60))
    job = site.job(POOL="00000000-0000-0000-0000-000000000000", GPU_COUNT="64", MATCH_LABELS=labels)
    site.more["wait"] = 1
    code = hook.run(hook.prolog(job, site.settings), Recorder(site, "prolog", 0.0))
    assert code == 1 and "ECONNREFUSED" in site.log()
    assert sent and max(sent) < 2700
    site.token = "m2m" + "x" * 4000
    assert site.prolog() == 1
    assert "token too long" in site.log()


def test_a_hanging_controller_is_left_in_time(site_of, juice):
    site = site_of(juice, wait=2)
    juice.faults({"method": "POST", "path": "/v1/request", "action": "hang"})
    machine, patience = site.machine("prolog"), []
    request = machine.request
    machine.sleep = patience.append
    machine.request = lambda *values: patience.append(values[-1]) or request(*values)
    assert site.hook.run(site.hook.prolog(site.job(POOL=juice.pool_id), site.settings), machine) == 1
    assert "ETIMEDOUT" in site.log()
    # JUICE_WAIT and 2 s to clean up, each rounded up to the half second that a request always gets.
    assert 2.0 <= sum(patience) <= 2 + 2 + 2 * 0.5


def test_a_session_that_is_closed_while_the_prolog_waits_is_asked_for_again(site, juice, process):
    juice.held.set()
    hook = process(site, "prolog")
    while not site.attempts() or not site.attempts()[0]["session"]:
        assert hook.step()
    while hook.holds_a_lock:
        hook.step()
    juice.call("DELETE", f"/v1/session/{site.attempts()[0]['session']}")
    juice.held.clear()
    assert hook.run() == 0
    assert len(juice.sessions(everything=True)) == 2
    assert [s["id"] for s in juice.settled()] == [site.fields()["session_id"]]
