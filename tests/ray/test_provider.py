from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fake_cluster.agent_stand_in import write_port
from fake_cluster.lean_node import STAND_IN, lean_raylet_command
from fake_cluster.ray_start_hook import CLIENT_SERVER, USERS_HOOK, prepare

from .conftest import living, until

pytest.importorskip("ray")

from fake_cluster.provider import Limits, monitor_argument


def test_limits_hold_for_the_type_and_for_all(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"max_workers": 4, "available_node_types": {"gpu": {"max_workers": 3}, "cpu": {}}}))
    limits = Limits(str(file))
    assert limits.room_for("gpu", {}) == 3
    assert limits.room_for("gpu", {"gpu": 2}) == 1
    assert limits.room_for("gpu", {"gpu": 1, "cpu": 2}) == 1
    assert limits.room_for("gpu", {"gpu": 1, "cpu": 3}) == 0
    assert limits.room_for("cpu", {"gpu": 3}) == 1
    assert limits.room_for("gpu", {"gpu": 9}) == 0


def test_limits_follow_the_file_and_survive_a_half_written_one(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("max_workers: 1")
    limits = Limits(str(file))
    assert limits.room_for("gpu", {}) == 1
    file.write_text("max_workers: 22")
    assert limits.room_for("gpu", {}) == 22
    file.write_text("max_workers: [")
    assert limits.room_for("gpu", {}) == 22
    file.unlink()
    assert limits.room_for("gpu", {"cpu": 2}) == 20


def test_without_a_file_there_is_no_limit() -> None:
    assert Limits("").room_for("gpu", {"gpu": 1000}) is None


def test_arguments_of_the_monitor_are_read_in_both_spellings() -> None:
    argv = ["monitor.py", "--gcs-address=10.0.0.1:7", "--autoscaling-config", "/tmp/c", "--flag"]
    assert monitor_argument("--gcs-address", argv) == "10.0.0.1:7"
    assert monitor_argument("--autoscaling-config", argv) == "/tmp/c"
    assert monitor_argument("--flag", argv) == ""
    assert monitor_argument("--other", argv) == ""


def test_a_raylets_agents_are_replaced_and_nothing_else() -> None:
    command = [
        "raylet",
        "--node_id=abc",
        "--session_dir=/tmp/s p",
        "--dashboard_agent_command=python dashboard.py",
        "--runtime_env_agent_command=python agent.py --runtime-env-agent-port=0",
        "--labels={}",
    ]
    lean = lean_raylet_command(command)
    assert [lean[at] for at in (0, 1, 2, 5)] == [command[at] for at in (0, 1, 2, 5)]
    assert lean[3].startswith(f"--dashboard_agent_command={sys.executable} -I -S {STAND_IN} idle ")
    assert lean[4].endswith(" -- python agent.py --runtime-env-agent-port=0")
    assert '"/tmp/s p"' in lean[3] and '"/tmp/s p"' in lean[4]


def test_a_raylet_that_is_started_in_another_way_is_left_alone() -> None:
    command = ["raylet", "--node_id=abc", "--session_dir=/tmp/s"]
    assert lean_raylet_command(command) is command


def test_the_stand_in_becomes_the_agent_when_it_is_called(tmp_path: Path) -> None:
    import socket

    answer = (
        "import socket, sys; port = int(sys.argv[1].split('=')[1]); s = socket.socket()\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', port)); s.listen()\n"
        "while True:\n    c, _ = s.accept(); c.sendall(b'the real one'); c.close()"
    )
    agent = [sys.executable, "-c", answer, "--port=0"]
    stand_in = subprocess.Popen(
        [sys.executable, "-I", "-S", STAND_IN, *("lazy", str(tmp_path), "n1", "agent_port", "--port", "--"), *agent]
    )
    try:
        file = tmp_path / "agent_port_n1"
        until(file.exists, "the port of the stand-in")
        address = ("127.0.0.1", int(file.read_text()))
        with socket.create_connection(address, timeout=30) as first:
            assert first.recv(100) == b""  # sent away

        def answered() -> bool:
            try:
                with socket.create_connection(address, timeout=30) as again:
                    return again.recv(100) == b"the real one"
            except ConnectionError:
                return False

        until(answered, "the agent's answer")
        assert living([stand_in.pid]) == [stand_in.pid]
    finally:
        stand_in.kill()
        stand_in.wait()


def test_the_stand_in_ends_with_its_raylet(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-I', '-S', {STAND_IN!r}, 'idle', "
            f"{str(tmp_path)!r}, 'n1', 'a,b']); print(p.pid, flush=True); p.wait()",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until(lambda: (tmp_path / "b_n1").exists(), "the ports of the stand-in")
    assert (tmp_path / "a_n1").read_text() == "1"
    parent.kill()
    parent.wait()
    until(lambda: not living([pid]), "the end of the stand-in")


def test_a_hook_of_the_users_own_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_start_hook.py").write_text("def prepare(params, head):\n    params.seen = head\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(USERS_HOOK, "users_start_hook.prepare")
    params = SimpleNamespace(ray_client_server_port=10001)
    prepare(params, False)
    assert (params.seen, params.ray_client_server_port) == (False, None)
    monkeypatch.setenv(CLIENT_SERVER, "1")
    params = SimpleNamespace(ray_client_server_port=10001)
    prepare(params, False)
    assert params.ray_client_server_port == 10001


def test_a_port_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    write_port(str(tmp_path), "agent_port", "n1", 1234)
    assert os.listdir(tmp_path) == ["agent_port_n1"]
    assert (tmp_path / "agent_port_n1").read_text() == "1234"
