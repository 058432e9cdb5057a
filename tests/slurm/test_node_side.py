"""The node side: what becomes of a session file and of the connection to the agent."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import threading
from pathlib import Path

import pytest

from fake_cluster.slurm.node_side import (
    Launch,
    NodeSettings,
    NodeStep,
    hook_module,
    session_environment,
    without_inherited_session,
)
from fake_cluster.slurm.runners import LocalRunner, Task

KEY = bytes(range(32))
CLUSTER = "juicesim"


class Agent:
    """The agent's end of the wire: takes one connection, keeps what it is sent, hangs up or answers when told to."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.received = b""
        self.connected = threading.Event()
        self.ended = threading.Event()
        self.connections: queue.Queue[socket.socket] = queue.Queue()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        try:
            connection, _ = self.server.accept()
        except OSError:
            return
        self.connections.put(connection)
        while part := connection.recv(4096):
            self.received += part
            if b"processName" in self.received:
                self.connected.set()
        self.ended.set()

    def close(self):
        self.server.shutdown(socket.SHUT_RDWR)
        self.thread.join(30)
        self.server.close()
        while not self.connections.empty():
            self.connections.get().close()


@pytest.fixture
def agent():
    made = Agent()
    yield made
    made.close()


class Node:
    def __init__(self, directory: Path):
        self.directory = directory
        (directory / "sessions").mkdir()
        self.key_file = directory / "key"
        self.key_file.write_bytes(KEY)
        self.settings = NodeSettings(
            CLUSTER, directory, self.key_file, session_wait_s=0.2, owners=(0, os.getuid()), juice_dir=Path("/j")
        )

    def seal(self, fields, *, job_id=7, uid=1000, key=KEY, name="7.session"):
        data = hook_module().seal_session(key, os.urandom(24), CLUSTER, job_id, uid, list(fields.items()))
        path = self.directory / "sessions" / name
        path.with_suffix(".part").write_bytes(data)
        path.with_suffix(".part").rename(path)

    def step(self, command, *, asked=True, restarts=0, settings=None, environment=None):
        task = Task(
            argv=("/bin/sh", "-c", command),
            environment={"PATH": "/usr/bin:/bin"} | (environment or {}),
            directory=str(self.directory),
            stdin="/dev/null",
            stdout=str(self.directory / "out"),
            stderr=str(self.directory / "err"),
            node="node1",
            cpus=1,
            marker=self.directory / "pid",
        )
        return NodeStep(Launch(7, 1000, asked, restarts, task), settings or self.settings, LocalRunner())

    def text(self, name):
        path = self.directory / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def granted(address, **more):
    return {
        "verdict": "granted",
        "restart_count": "0",
        "sealed_at": "1700000000",
        "session_id": "11111111-2222-3333-4444-555555555555",
        "pool": "test",
        "pool_id": "p",
        "address": address,
        "gpu_indexes": "4,6",
        "gpu_names": "A,B",
        "vram_bytes": "5,6",
        "config": '{"id":"x"}',
    } | more


def test_granted_session_sets_the_environment_connects_and_reports_the_exit_code(node, agent):
    node.seal(granted(agent.address))
    step = node.step('echo "$JUICE_SESSION_ID $JUICE_SESSION_GPUS $CUDA_VISIBLE_DEVICES"; exit 3')
    assert step.run() == (3, 0)
    assert node.text("out") == "11111111-2222-3333-4444-555555555555 2 0,1\n"
    assert agent.ended.wait(30)
    head, _, rest = agent.received.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/connect/session/11111111-2222-3333-4444-555555555555 HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    body, end = json.JSONDecoder().raw_decode(rest.decode())
    assert set(body) == {"id", "pid", "processName"}
    assert body["processName"] == "sh"
    assert rest.decode()[end:] == '{"exitCode": 3}\n'


def test_session_environment_of_the_contract():
    env = session_environment(granted("h:1"), Path("/j"), {"LD_PRELOAD": "/a.so /j/libjuicejuda.so:/b.so", "X": "1"})
    assert env == {
        "X": "1",
        "JUICE_CFG_OVERRIDE": '{"id":"x"}',
        "LD_PRELOAD": "/j/libjuicejuda.so:/a.so:/b.so",
        "JUICE_SESSION_ID": "11111111-2222-3333-4444-555555555555",
        "JUICE_SESSION_POOL": "test",
        "JUICE_SESSION_ADDRESS": "h:1",
        "JUICE_SESSION_GPUS": "2",
        "JUICE_SESSION_VRAM": "5,6",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert without_inherited_session(env, Path("/j")) == {"X": "1", "LD_PRELOAD": "/a.so:/b.so"}


def test_variables_that_are_not_of_a_session_are_left_alone():
    environment = {"CUDA_VISIBLE_DEVICES": "3", "LD_PRELOAD": "/j/libjuicejuda.so"}
    assert without_inherited_session(environment, Path("/j")) == environment


def test_denied_session_fails_the_job_with_its_reason(node):
    node.seal({"verdict": "denied", "restart_count": "0", "sealed_at": "1", "reason": "no pool named 'tset'"})
    assert node.step("echo ran").run() == (1, 0)
    assert node.text("err") == (
        "slurmstepd-node1: error: juice: job 7 gets no GPU session: denied: no pool named 'tset'\n"
    )
    assert node.text("out") == ""


def test_session_file_that_appears_late(node, agent):
    step = node.step("echo ran", settings=NodeSettings(CLUSTER, node.directory, node.key_file, 60.0, (os.getuid(),)))
    result: queue.Queue[tuple[int, int]] = queue.Queue()
    thread = threading.Thread(target=lambda: result.put(step.run()))
    thread.start()
    node.seal(granted(agent.address))
    assert result.get(timeout=60) == (0, 0)
    thread.join()
    assert node.text("out") == "ran\n"


def test_session_file_that_never_appears(node):
    assert node.step("echo ran").run() == (1, 0)
    assert "7.session did not appear on node1 within 0.2 s; is the directory shared" in node.text("err")
    assert node.text("out") == ""


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda node: node.seal(granted("h:1"), job_id=8), "does not open: it was sealed for another job"),
        (lambda node: node.seal(granted("h:1"), uid=1001), "does not open: it was sealed for another job"),
        (lambda node: node.seal(granted("h:1"), key=bytes(32)), "does not open: it was sealed for another job"),
        (lambda node: (node.directory / "sessions" / "7.session").symlink_to("/etc/passwd"), "symbolic link"),
        (lambda node: (node.directory / "sessions" / "7.session").write_bytes(b"JUICESF\2" + bytes(60)), "version 2"),
        (lambda node: node.seal(granted("h:1", restart_count="3")), "is of start 3 of the job, and this is start 0"),
    ],
    ids=["job", "user", "key", "link", "version", "start"],
)
def test_session_file_that_is_not_this_jobs(node, spoil, words):
    spoil(node)
    assert node.step("echo ran").run() == (1, 0)
    assert words in node.text("err")
    assert node.text("out") == ""


def test_interactive_step_is_not_told_its_restart_count(node, agent):
    node.seal(granted(agent.address, restart_count="3"))
    assert node.step("true", restarts=None).run() == (0, 0)


def test_session_file_is_used_even_when_the_job_did_not_ask_for_it(node, agent):
    node.seal(granted(agent.address))
    assert node.step("echo $JUICE_SESSION_POOL", asked=False).run() == (0, 0)
    assert node.text("out") == "test\n"


def test_job_without_a_session_just_runs(node):
    assert node.step(
        "echo ${JUICE_SESSION_ID-none}; exit 4", asked=False, environment={"JUICE_SESSION_ID": "x"}
    ).run() == (
        4,
        0,
    )
    assert node.text("out") == "none\n"


def test_agent_that_hangs_up_kills_the_job(node, agent):
    node.seal(granted(agent.address))
    step = node.step("sleep 600")
    result: queue.Queue[tuple[int, int]] = queue.Queue()
    thread = threading.Thread(target=lambda: result.put(step.run()))
    thread.start()
    assert agent.connected.wait(60)
    agent.connections.get(timeout=60).shutdown(socket.SHUT_RDWR)
    assert result.get(timeout=60) == (0, signal.SIGKILL)
    thread.join()
    assert f"juice: the agent at {agent.address} closed the session" in node.text("err")


def test_agent_that_refuses_the_session_kills_the_job(node, agent):
    node.seal(granted(agent.address))
    step = node.step("sleep 600")
    result: queue.Queue[tuple[int, int]] = queue.Queue()
    thread = threading.Thread(target=lambda: result.put(step.run()))
    thread.start()
    assert agent.connected.wait(60)
    agent.connections.get(timeout=60).sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    assert result.get(timeout=60) == (0, signal.SIGKILL)
    thread.join()
    assert "refused the session: HTTP/1.1 404 Not Found" in node.text("err")


def test_agent_that_cannot_be_reached_fails_the_job(node):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    node.seal(granted(address))
    assert node.step("echo ran").run() == (1, 0)
    assert f"cannot connect to the agent at {address}" in node.text("err")
    assert node.text("out") == ""


def test_kill_reaches_the_whole_process_group_and_a_step_that_still_waits(node):
    waiting = node.step("echo ran", settings=NodeSettings(CLUSTER, node.directory, node.key_file, 600.0))
    waiting.kill(signal.SIGTERM)
    assert waiting.run() == (0, signal.SIGTERM)
    assert node.text("out") == ""


def test_program_that_does_not_exist(node):
    step = node.step("true", asked=False)
    object.__setattr__(step._launch.task, "argv", ("/no/such/program",))
    assert step.run() == (1, 0)
    assert node.text("err") == "slurmstepd-node1: error: /no/such/program: No such file or directory\n"
