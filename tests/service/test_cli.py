"""`juice-sim controller` and `juice-sim agent` as processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from juice_sim.client import ApiError, Client

COMMAND = [sys.executable, "-m", "juice_sim.cli.main"]


def juice_sim(*arguments, **more):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, **more)


@pytest.fixture
def launch():
    processes = []

    def begin(*arguments):
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return process, json.loads(line)

    yield begin
    for process in reversed(processes):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def token_of(line):
    with open(line["admin_token_file"], encoding="ascii") as file:
        return file.read().strip()


def test_controller_and_agent_in_the_foreground(launch, tmp_path, wait_until):
    _, line = launch("controller", "--data", str(tmp_path / "d"))
    assert set(line) == {"url", "pid", "admin_token_file"}
    assert stat.S_IMODE(os.stat(line["admin_token_file"]).st_mode) == 0o600
    agent, shown = launch(
        *("agent", "--controller", line["url"], "--pool", "test", "--gpus", "2", "--model", "t4", "--vram", "4GiB"),
        *("--labels", "zone=a,rack=7", "--taints", "dedicated=ml", "--token-file", line["admin_token_file"]),
    )
    assert shown["pool_created"] is True
    with Client(line["url"], token_of(line)) as client:
        (registered,) = client.agents()
        assert (registered.id, registered.address) == (shown["id"], shown["address"])
        assert [(gpu.name, gpu.vram) for gpu in registered.gpus] == [("Tesla T4", 4 << 30)] * 2
        assert (registered.labels, registered.taints) == ({"zone": "a", "rack": "7"}, {"dedicated": "ml"})
        second, other = launch(
            *("agent", "--controller", line["url"], "--pool", shown["pool_id"], "--model", "A10"),
            *("--token-file", line["admin_token_file"], "--poll"),
        )
        assert (other["pool_id"], other["pool_created"]) == (shown["pool_id"], False)
        for process in (agent, second):
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
            assert (process.returncode, out) == (0, "")
            assert "Traceback" not in err
        assert client.agents(everything=True) == []


def test_token_is_not_in_argv_output_or_log(launch, tmp_path):
    controller, line = launch("controller", "--data", str(tmp_path / "d"))
    token = token_of(line)
    agent, shown = launch("agent", "--controller", line["url"], "--pool", "p", "--token-file", line["admin_token_file"])
    for process in (agent, controller):
        with open(f"/proc/{process.pid}/cmdline", "rb") as argv, open(f"/proc/{process.pid}/environ", "rb") as environ:
            assert token.encode() not in argv.read() + environ.read()
    assert token not in json.dumps([line, shown])
    for process in (agent, controller):
        process.send_signal(signal.SIGTERM)
        assert token not in "".join(process.communicate(timeout=30))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("controller", "--listen", "nowhere"), "accepted: HOST:PORT"),
        (("controller", "--listen", "127.0.0.1:99999"), "accepted: HOST:PORT"),
        (("controller", "--quirks", "on-read"), "accepted: open-source"),
        (("controller", "--policy", "wurst"), "wurst"),
        (("controller", "--queue", "lifo"), "accepted: skip, strict_fifo"),
        (("controller", "--missing-after", "-1"), "positive"),
        (("controller", "--webhook", "ftp://x"), "an http:// or https:// URL"),
        (("controller", "--log", "/nonexistent/x"), "a file that can be written"),
        (("controller", "--data"), "expected one argument"),
        (("controller", "--\x1b[2J"), r"unrecognized arguments: --\x1b[2J"),
        (
            ("agent", "--controller", "http://127.0.0.1:9", "--pool", "p", "--ca-file", "/dev/null"),
            "--ca-file /dev/null",
        ),
        (("controller", "--tls-cert", "/nonexistent.pem"), "TLS certificate"),
        (("controller", "--data", "/proc/nothing"), "give a directory"),
        (("agent", "--controller", "ftp://x", "--pool", "p"), "http://"),
        (("agent", "--controller", "http://127.0.0.1:9", "--pool", "p", "--model", "XYZ"), "accepted: A2, A10"),
        (("agent", "--controller", "http://127.0.0.1:9", "--pool", "p", "--vram", "16Gi"), "16Gi"),
        (("agent", "--controller", "http://127.0.0.1:9", "--pool", "p", "--labels", "a"), "key=value"),
        (("agent", "--controller", "http://127.0.0.1:9", "--pool", "p", "--token-file", "/nonexistent"), "token file"),
        (("agent", "--controller", "http://127.0.0.1:9", "--pool", "p"), "is it running?"),
        (("brew",), "unknown"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, text):
    finished = juice_sim(*arguments)
    assert finished.returncode == 2
    assert text in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1
    assert finished.stdout == ""


def test_data_directory_in_use_names_the_process(launch, tmp_path):
    _, line = launch("controller", "--data", str(tmp_path / "d"))
    finished = juice_sim("controller", "--data", str(tmp_path / "d"))
    assert (finished.returncode, finished.stdout) == (2, "")
    assert f"in use by process {line['pid']}" in finished.stderr


def test_ufm_sdk_104_token_file_that_all_can_read_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text("m2mx\n")
    path.chmod(0o644)
    finished = juice_sim("agent", "--controller", "http://127.0.0.1:9", "--pool", "p", "--token-file", str(path))
    assert finished.returncode == 2
    assert f"chmod o-rwx {path}" in finished.stderr


def test_help_is_quick_and_lists_what_is_there():
    finished = juice_sim("--help")
    assert finished.returncode == 0
    assert "controller" in finished.stdout
    script = "import sys, juice_sim.cli.main as m; m.available(); print('ray' in sys.modules, 'aiohttp' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert loaded.stdout.split() == ["False", "False"]


def test_slime_1714_proxy_variables_are_not_looked_at(launch, tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    _, line = launch("controller", "--no-auth")
    assert line["admin_token_file"] is None
    _, shown = launch("agent", "--controller", line["url"], "--pool", "p")
    with Client(line["url"]) as client:
        assert [one.id for one in client.agents()] == [shown["id"]]


def test_httpx_475_own_certificate_is_refused_unless_its_ca_is_given(launch, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    made = subprocess.run(
        ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2", *files, *subject], capture_output=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    _, line = launch("controller", "--no-auth", "--tls-cert", str(certificate), "--tls-key", str(key))
    assert line["url"].startswith("https://")
    with Client(line["url"], tries=1) as stranger, pytest.raises(ApiError, match="certificate"):
        stranger.pools()
    launch("agent", "--controller", line["url"], "--pool", "p", "--ca-file", str(certificate))
    with Client(line["url"], ca_file=str(certificate)) as client:
        assert len(client.agents()) == 1


def test_our_own_mistakes_are_one_line_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from juice_sim.cli import doctor, main

    def broken(args: object) -> int:
        raise KeyError("planted")

    monkeypatch.setattr(doctor, "run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main.main(["doctor"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("juice-sim doctor: internal error: KeyError: 'planted'; please report it with ")
    assert line.count("\n") == 1
    assert 'raise KeyError("planted")' in Path(line.split()[-1]).read_text()


def test_a_full_disk_is_told_and_never_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from juice_sim.cli import doctor, main

    def broken(args: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    error: Exception = OSError(errno.ENOSPC, "No space left on device", "/x/y")
    assert main.main(["doctor"]) == 1
    line = capsys.readouterr().err
    assert line == "juice-sim doctor: error: No space left on device (/x/y); make room, or set TMPDIR\n"
    error = KeyError("planted")
    assert main.main(["doctor"]) == 1
    line = capsys.readouterr().err
    assert "KeyError: 'planted'" in line and "could not be written" in line and line.count("\n") == 1


def test_a_request_that_is_no_http_is_one_line_of_the_log_and_never_quoted(launch, tmp_path):
    process, line = launch("controller", "--data", str(tmp_path / "d"))
    token = token_of(line)
    host, port = line["url"].removeprefix("http://").rsplit(":", 1)
    for request in (
        f"GET / HTTP/1.1\r\nAuthorization: Bearer {token}\0\r\n\r\n",
        f"GET / HTTP/1.1\r\nAuthorization : Bearer {token}\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(request.encode())
            assert b" 400 " in connection.recv(65536)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert log.count("Error handling request from 127.0.0.1: ") == 2
    assert token not in log and "Traceback" not in log
