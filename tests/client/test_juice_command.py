"""`juice`, the stand-in for the client's command, as a process of its own against a real controller and agents."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from juice_sim.cli_juice.lists import size_text
from juice_sim.client import Client
from juice_sim.client_build import install_client
from juice_sim.local import LocalJuice

pytestmark = pytest.mark.compiler

GIB = 1 << 30


class Command:
    """The command in a folder, with its own home."""

    def __init__(self, path: Path, home: Path, juice: LocalJuice) -> None:
        self.path, self.home, self.juice = path, home, juice
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("JUICE_", "XDG_"))
        } | {"HOME": str(home)}

    def __call__(self, *arguments, code=0, **more):
        environment = self.environment | more.pop("env", {})
        done = subprocess.run(
            [self.path, *arguments], env=environment, capture_output=True, text=True, timeout=120, **more
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        if code:
            assert done.stderr.startswith(("juice: ", "usage: "))
        return done.stderr if code else done.stdout

    def start(self, *arguments, **more):
        return subprocess.Popen(
            [self.path, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def json(self, *arguments):
        return json.loads(self(*arguments, "--json"))

    def open_sessions(self):
        return [one.id for one in self.juice.client.sessions()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    return install_client(tmp_path_factory.mktemp("juice"))


@pytest.fixture
def command(installed, tmp_path, juice) -> Command:
    """Not logged in."""
    return Command(installed, tmp_path, juice)


@pytest.fixture
def logged_in(command, juice) -> Command:
    juice.add_pool("test", gpus=2, labels={"zone": "a"})
    token = juice.client.create_token("for tests", admin=True).token
    command("login", juice.url, "-t", token)
    return command


# --- login, tokens ---------------------------------------------------------------------------------------------------


def test_the_token_is_kept_where_only_its_owner_can_read_it(logged_in, juice):
    path = logged_in.home / ".config" / "juice" / "login.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    kept = json.loads(path.read_text())
    assert kept["controller"] == juice.url and kept["token"].startswith("m2m")
    path.chmod(0o644)
    assert "chmod 600" in logged_in("pool", "list", code=1)


def test_login_says_who_it_is_and_reads_the_token_from_standard_input(command, juice):
    made = juice.client.create_token("stdin")
    text = command("login", juice.url, "--token", "-", input=made.token + "\n")
    assert text.startswith(f"Logged in to {juice.url} as ") and made.token not in text
    assert command("login", "-t", "-", input=made.token + "\n").startswith(f"Logged in to {juice.url}")
    assert command("--quiet", "login", "-t", "-", input=made.token + "\n") == ""
    assert command("logout") == "Logged out\n" and command("logout") == "Not logged in\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["login", "-t", "m2mwrong"], 1, "does not accept the token"),
        (["login", "-t", "secret"], 2, 'starts with "m2m"'),
        (["login"], 2, "-t TOKEN"),
        (["pool", "list"], 1, "log in: juice login"),
    ],
)
def test_what_is_wrong_with_a_login_is_told_without_the_token(command, juice, arguments, code, says):
    text = command("--controller", juice.url, *arguments, code=code)
    assert says in text and "m2mwrong" not in text and "secret" not in text
    assert not (command.home / ".config" / "juice" / "login.json").exists()


def test_without_a_controller_the_ways_to_name_one_are_told(command):
    text = command("gpu", "list", code=2)
    assert all(way in text for way in ("juice login", "JUICE_CONTROLLER", "--controller"))
    assert "http://" in command("--controller", "nowhere", "gpu", "list", code=2)
    assert "is it running" in command("--controller", "http://127.0.0.1:9", "gpu", "list", code=1)


def test_the_token_of_a_login_goes_to_its_controller_only(logged_in):
    with LocalJuice() as other:
        assert "401" in logged_in("--controller", other.url, "pool", "list", code=1)
        variables = {"JUICE_CONTROLLER": other.url, "JUICE_TOKEN": other.token}
        assert json.loads(logged_in("pool", "list", "--json", env=variables)) == []


def test_tokens_are_created_listed_and_removed(logged_in, juice):
    text = logged_in("m2m", "create", "-d", "nightly job", "--expire-days", "365")
    token, token_id = (line.split()[1] for line in text.splitlines()[:2])
    assert token.startswith("m2m")
    listed = logged_in("m2m", "list")
    assert listed.splitlines()[0].split() == ["DESCRIPTION", "TOKEN", "ID", "EXPIRESAT"]
    assert "nightly job" in listed and token_id in listed and token not in listed
    (one,) = json.loads(logged_in("m2m", "list", token_id, "--json"))
    assert one["description"] == "nightly job" and "token" not in one
    login = json.loads((logged_in.home / ".config" / "juice" / "login.json").read_text())
    made, maker = (Client(juice.url, secret).whoami() for secret in (token, login["token"]))
    assert (made.user_id, made.admin) == (maker.user_id, False)  # its maker's permissions, and not an admin's
    assert logged_in("m2m", "remove", token_id) == f"Token {token_id} removed\n"
    assert "401" in logged_in("pool", "list", code=1, env={"JUICE_TOKEN": token})
    assert "no token" in logged_in("m2m", "list", token_id, code=1)


def test_a_token_may_be_limited_to_a_pool(logged_in, juice):
    made = logged_in.json("m2m", "create", "-d", "limited", "--permissions", "create_session:test")
    who = Client(juice.url, made["token"]).whoami()
    assert not who.admin and [pool.name for pool in who.permissions["create_session"]] == ["test"]
    assert "PERMISSION:POOL" in logged_in("m2m", "create", "-d", "x", "--permissions", "fly:test", code=2)


@pytest.mark.parametrize("days", ["0", "366", "-1"])
def test_a_token_lives_from_1_to_365_days(logged_in, days):
    assert "1 to 365" in logged_in("m2m", "create", "-d", "x", f"--expire-days={days}", code=2)


# --- lists -----------------------------------------------------------------------------------------------------------


def test_pools_gpus_and_agents_are_listed(logged_in, juice):
    (agent,) = juice.client.agents()
    pool = logged_in("pool", "list").splitlines()
    assert pool[0].split() == ["ORGANIZATION.NAME", "NAME", "ID", "SESSIONS", "GPUCOUNT"]
    assert pool[1].split() == ["-", "test", agent.pool_id, "0", "2"]
    agents = logged_in("agent", "list").splitlines()
    assert agents[0].split() == ["STATE", "HOSTNAME", "POOL.NAME", "ID", "NUMGPUS"]
    assert agents[1].split() == ["active", agent.hostname, "test", agent.id, "2"]
    gpus = logged_in("gpu", "list").splitlines()
    assert gpus[0].split() == ["HOSTNAME", "NAME", "UUID", "AGENTVERSION", "VRAM-H"]
    assert sorted(line.split()[3] for line in gpus[1:]) == sorted(gpu.uuid for gpu in agent.gpus)
    assert [one["id"] for one in logged_in.json("agent", "info", agent.id)] == [agent.id]
    assert {gpu["uuid"] for gpu in logged_in.json("gpu", "ls")} == {gpu.uuid for gpu in agent.gpus}
    assert "404" in logged_in("agent", "info", "nobody", code=1)


def test_fields_and_order_can_be_chosen(logged_in):
    text = logged_in("gpu", "list", "--fields", "index,name", "--sort-cols=-1")
    assert [line.split()[0] for line in text.splitlines()] == ["INDEX", "1", "0"]
    rows = json.loads(logged_in("gpu", "list", "--fields", "index,usedVram", "--json", "--sort-cols", "1"))
    assert rows == [{"index": 0, "usedVram": 0}, {"index": 1, "usedVram": 0}]
    assert "accepted: hostname" in logged_in("gpu", "list", "--fields", "colour", code=2)
    assert "1 to 5" in logged_in("gpu", "list", "--sort-cols", "9", code=2)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (GIB * 3 // 2, "1.5 GiB"), (GIB << 20, "1024 TiB")],
)
def test_sizes_are_readable(size, text):
    assert size_text(size) == text


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_is_requested_listed_and_released(logged_in):
    text = logged_in("session", "request", "--pool-ids", "test", "--vram", "1.5", "--match-labels", "zone=a")
    (session_id,) = logged_in.open_sessions()
    assert text.startswith(f"Session {session_id} is active: 1 GPU on 127.0.0.1:")
    listed = logged_in("session", "list").splitlines()
    assert listed[0].split() == ["STATE", "ID", "EXPIRESAT", "LATENCYMS", "UPLOADMBPS", "DOWNLOADMBPS"]
    assert listed[1].split()[:2] == ["active", session_id]
    (one,) = logged_in.json("session", "list")
    assert one["gpus"][0]["vramRequired"] == GIB * 3 // 2
    assert f"session {session_id} is active already" in logged_in("session", "request", code=1)
    assert "release it first" in logged_in("logout", code=1)
    assert logged_in("session", "release") == f"Session {session_id} released\n"
    assert "no active session" in logged_in("session", "release", code=1)
    assert [one["state"] for one in logged_in.json("session", "list", "--all")] in (["closed"], ["canceling"])


def test_the_configuration_can_be_dumped(logged_in):
    config = json.loads(logged_in("session", "request", "--num-gpus", "2", "--dump-config"))
    assert config["id"] in logged_in.open_sessions() and len(config["servers"]) == 1
    assert config["accessToken"] == "" and len(config["requirements"]["gpus"]) == 2
    assert logged_in("session", "release", config["id"]) == f"Session {config['id']} released\n"


def test_a_gpu_can_be_named(logged_in, juice):
    (agent,) = juice.client.agents()
    logged_in("session", "request", "--gpu-ids", agent.gpus[1].uuid)
    (session,) = juice.client.sessions()
    assert [gpu.index for gpu in session.gpus] == [1]
    assert "is unknown" in logged_in("run", "--gpu-ids", "GPU-none", "true", code=2)
    # It is taken now, and the other one is not what was asked for.
    assert "no GPU was free" in logged_in("run", "--gpu-ids", agent.gpus[1].uuid, "true", code=1)
    logged_in("run", "--gpu-ids", agent.gpus[0].uuid, "true")
    logged_in("session", "release")


def test_of_several_pools_the_one_that_has_a_gpu_is_taken(logged_in, juice):
    juice.add_pool("empty", agents=0)
    logged_in("session", "request", "--pool-ids", "empty,test", "--wait-for", "10")
    (session,) = juice.client.sessions()
    assert {pool.id: pool.name for pool in juice.client.pools()}[session.pool_id] == "test"
    logged_in("session", "release")


def test_a_session_ends_with_the_process_that_it_watches(logged_in, wait_until):
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    logged_in("session", "request", "--watch-pid", str(program.pid))
    assert len(logged_in.open_sessions()) == 1
    program.communicate(b"\n", timeout=60)
    wait_until(lambda: not logged_in.open_sessions(), "the session is released", 60)
    wait_until(lambda: not (logged_in.home / ".config" / "juice" / "session.json").exists(), "and forgotten")


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--vram", "16Gi"], 2, "unknown suffix"),
        (["--vram", "1", "--num-gpus", "2"], 2, "slices are for single-GPU sessions"),
        (["--num-gpus", "0"], 2, "accepted: 1 to 1024"),
        (["--pool-ids", "nowhere"], 2, "pool 'nowhere' is unknown; accepted: test"),
        (["--match-labels", "zone in a"], 2, "label selector"),
        (["--tolerates", "x"], 2, "key=value"),
        (["--wait-for", "-1"], 2, "--wait-for"),
        (["--watch-pid", "4194305"], 2, "no such process"),
        (["--num-gpus", "3"], 1, "422"),
        (["--match-labels", "zone!=a"], 1, "422"),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_leaves_nothing(logged_in, options, code, says):
    assert says in logged_in("session", "request", *options, code=code)
    assert logged_in.open_sessions() == []


# --- run -------------------------------------------------------------------------------------------------------------

LOOK = (
    'import ctypes, os, sys; c = ctypes.CDLL("libcuda.so.1"); n = ctypes.c_size_t(); print(c.cuInit(0), '
    'c.cuDeviceTotalMem_v2(ctypes.byref(n), 0), n.value, sorted(k for k in os.environ if "TOKEN" in k)); sys.exit(11)'
)


def test_run_gives_a_program_a_session_and_takes_it_back(logged_in, juice, wait_until):
    token = juice.client.create_token("run", admin=True).token
    done = subprocess.run(
        [logged_in.path, "run", "--vram", "1", "--match-labels", "zone in (a,b)", sys.executable, "-c", LOOK],
        env=logged_in.environment | {"JUICE_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (11, f"0 0 {GIB} []\n", "")
    wait_until(lambda: not logged_in.open_sessions(), "released")
    (session,) = juice.client.sessions(everything=True)
    wait_until(
        lambda: [c.exit_code for c in juice.client.session(session.id).connections or []] == [11], "its exit code"
    )


def test_run_uses_the_active_session_unless_it_shall_be_ephemeral(logged_in, juice):
    logged_in("session", "request", "--vram", "2")
    (active,) = logged_in.open_sessions()
    show = ["sh", "-c", "echo $JUICE_SESSION_ID $JUICE_SESSION_VRAM"]
    assert logged_in("run", *show).split() == [active, str(2 * GIB)]
    assert logged_in("run", "--ephemeral", "--vram", "1", *show).split()[1] == str(GIB)
    assert logged_in.open_sessions() == [active]
    logged_in("session", "release")


def test_run_passes_on_arguments_signals_and_how_the_program_ended(logged_in, juice, wait_until):
    assert logged_in("run", "printf", "%s|", "--json", "-t", "a b") == "--json|-t|a b|"
    for how, code in (("kill -9 $$", 137), ("exit 77", 77)):
        done = subprocess.run([logged_in.path, "run", "sh", "-c", how], env=logged_in.environment, timeout=120)
        assert done.returncode == code
    program = (
        "import signal, sys, time\nsignal.signal(15, lambda *a: sys.exit(33))\nprint('up', flush=True)\ntime.sleep(60)"
    )
    running = logged_in.start("run", sys.executable, "-c", program)
    assert running.stdout.readline() == "up\n"
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 33
    wait_until(lambda: not logged_in.open_sessions(), "released")
    assert "no/such" in logged_in("run", "/no/such/program", code=127)
    wait_until(lambda: not logged_in.open_sessions(), "released")


def test_run_ends_when_its_session_is_cancelled(logged_in, juice, wait_until):
    running = logged_in.start("run", "sleep", "300")
    (session_id,) = wait_until(logged_in.open_sessions, "a session")
    wait_until(lambda: juice.client.session(session_id).connections, "it is connected")
    juice.client.release_session(session_id)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 137 and "has been cancelled" in error


def test_when_no_gpu_is_free_the_user_has_chosen_what_to_do(logged_in, juice):
    pool_id = juice.client.pools()[0].id
    held = juice.client.request_session(pool_id, gpus=2)
    juice.client.wait_for_session(held)
    assert "no GPU was free within 1 s" in logged_in("run", "--wait-for", "1", "echo", "no", code=1)
    done = subprocess.run(
        [logged_in.path, "run", "--on-queue-timeout", "continue", "sh", "-c", "echo ran [$JUICE_SESSION_ID]"],
        env=logged_in.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "ran []\n") and "going on without a GPU" in done.stderr
    assert logged_in.open_sessions() == [held]


def test_when_the_controller_is_away_the_user_has_chosen_what_to_do(command):
    away = {"JUICE_CONTROLLER": "http://127.0.0.1:9"}
    assert "no answer" in command("run", "echo", "no", code=1, env=away)
    assert command("run", "--on-connection-error", "continue", "echo", "ran", env=away) == "ran\n"


def test_help_is_there_and_bad_options_are_refused(command):
    for words in ([], ["run"], ["session", "request"], ["m2m", "create"], ["gpu", "list"]):
        assert "usage: juice" in command(*words, "--help")
    assert "invalid choice" in command("fly", code=2)
    assert "invalid choice" in command("run", "--on-queue-timeout", "wait", "true", code=2)
