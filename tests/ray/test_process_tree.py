from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fake_cluster.process_tree import ProcessTree, command_line, descendants, kill_with_descendants, read_process

from .conftest import living, until

ROOT = Path(__file__).parents[2]

# Starts a grandchild that leaves no trace of its origin: own session, no environment, parent gone, SIGTERM ignored.
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"], {})
    os._exit(0)
os.wait()
time.sleep(3600)
"""


def start_daemon(tree: ProcessTree, tmp_path: Path) -> int:
    pid_file = tmp_path / "daemon.pid"
    tree.start([sys.executable, "-c", DAEMON, str(pid_file)], env=dict(os.environ), log=tmp_path / "log")
    until(pid_file.exists, "the daemon's pid")
    return int(pid_file.read_text())


def test_a_daemon_that_hides_is_found_and_stopped(tmp_path: Path) -> None:
    tree = ProcessTree()
    daemon = start_daemon(tree, tmp_path)
    assert daemon in [process.pid for process in tree.processes()]
    tree.stop()
    assert living([daemon]) == []
    assert tree.processes() == []
    tree.stop()


def test_nothing_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    driver = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from tests.ray.test_process_tree import *\n"
            f"tree = ProcessTree(remove=[Path({str(scratch)!r})])\n"
            f"print(start_daemon(tree, Path({str(tmp_path)!r})), tree.keeper_pid, flush=True)\n"
            "time.sleep(3600)",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    pids = [int(word) for word in driver.stdout.readline().split()]
    assert living(pids) == pids
    driver.kill()
    driver.wait()
    until(lambda: not living(pids), "the end of the tree")
    until(lambda: not scratch.exists(), "the removal of its directory")


def test_the_program_ends_with_its_keeper(tmp_path: Path) -> None:
    tree = ProcessTree()
    tree.start([sys.executable, "-c", "import signal; signal.pause()"], env={}, log=tmp_path / "log")
    pids = [process.pid for process in tree.processes()]
    assert tree.keeper_pid is not None
    os.kill(tree.keeper_pid, signal.SIGKILL)
    until(lambda: not living(pids), "the end of the program")
    tree.stop()


def test_the_exit_code_is_the_programs_own(tmp_path: Path) -> None:
    tree = ProcessTree()
    tree.start([sys.executable, "-c", "print('so it goes'); raise SystemExit(7)"], env={}, log=tmp_path / "log")
    until(lambda: tree.exit_code() is not None, "the exit code")
    assert tree.exit_code() == 7
    assert (tmp_path / "log").read_text() == "so it goes\n"
    tree.stop()


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot start /no/such/program"):
        ProcessTree().start(["/no/such/program"], env={}, log=tmp_path / "log")


def test_killing_one_branch_leaves_the_rest(tmp_path: Path) -> None:
    branch = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    program = (
        "import subprocess, sys\n"
        f"each = [subprocess.Popen([sys.executable, '-c', {branch!r}]) for _ in range(2)]\n"
        "[process.wait() for process in each]; import signal; signal.pause()"
    )
    tree = ProcessTree()
    tree.start([sys.executable, "-c", program], env={}, log=tmp_path / "log")
    until(lambda: len(tree.processes()) == 5, "two branches of two processes each")
    main = next(process for process in tree.processes() if process.ppid == tree.keeper_pid)
    first, second = (process.pid for process in tree.processes() if process.ppid == main.pid)
    leaf = descendants(first)[0].pid
    assert sorted(kill_with_descendants(first)) == sorted([first, leaf])
    until(lambda: not living([first, leaf]), "the end of the branch")
    assert len(living([main.pid, second])) == 2
    assert kill_with_descendants(first) == []
    tree.stop()


def test_processes_that_are_gone_have_no_details() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert read_process(process.pid) is None
    assert command_line(process.pid) == []
