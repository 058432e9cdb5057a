"""Programs with the library preloaded: what the agent sees of them, and that they do not notice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.compiler

HELD = "import sys; sys.stdin.read()"
GONE = "is gone: the program goes on without the GPUs"


def test_a_program_is_shown_while_it_runs_and_its_exit_code_afterwards(session, wait_until):
    program = session.start(sys.executable, "-c", f"{HELD}; sys.exit(7)")
    (shown,) = wait_until(session.connections, "the program is shown")
    assert (shown.pid, shown.exit_code) == (program.pid, None)
    assert shown.process_name.startswith("python")
    program.communicate(timeout=60)
    assert program.returncode == 7
    wait_until(lambda: session.ended(program.pid) == 7, "the exit code is reported")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 9)", -1),
        ("os.abort()", -1),
        ("raise SystemError", 1),
        ("", 0),
    ],
    ids=["exit", "_exit", "killed", "abort", "exception", "end"],
)
def test_how_a_program_ends_is_told(session, wait_until, ending, code):
    program = session.start(sys.executable, "-c", f"import os, sys; {ending}")
    program.communicate(timeout=60)
    wait_until(lambda: session.ended(program.pid) is not None, "an exit code is reported")
    assert session.ended(program.pid) == code


def test_a_forked_child_connects_as_itself(session, wait_until):
    text = f"import os\nchild = os.fork()\n{HELD}\nif child: os.waitpid(child, 0)\nos._exit(5 if child else 6)"
    program = session.start(sys.executable, "-c", text)
    both = wait_until(lambda: len(session.connections()) == 2 and session.connections(), "both are shown")
    assert program.pid in {c.pid for c in both}
    (child,) = {c.pid for c in both} - {program.pid}
    program.communicate(timeout=60)
    wait_until(lambda: (session.ended(program.pid), session.ended(child)) == (5, 6), "both exit codes")


def test_a_program_that_becomes_another_keeps_its_connection(session, wait_until):
    program = session.start("sh", "-c", "read line; exec cat")
    wait_until(lambda: session.named() == {("sh", None)}, "the shell is shown")
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    wait_until(lambda: session.named() == {("cat", None)}, "the same connection, under the new name")
    program.communicate(timeout=60)
    wait_until(lambda: session.named() == {("cat", 0)}, "its end")


def test_a_shell_and_what_it_starts_have_one_connection_each(session, wait_until):
    done = session.run("sh", "-c", "ls / >/dev/null; cat </dev/null; (exit 9); exit 2")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    wait_until(lambda: session.named() == {("ls", 0), ("cat", 0), ("sh", 9), ("sh", 2)}, "all four")
    assert len({c.pid for c in session.connections()}) == 4


@pytest.mark.parametrize("call", ["execv", "execve", "execvp", "execvpe", "execl", "execlp", "execle", "fexecve"])
def test_every_kind_of_exec_works_and_hands_the_connection_on(session, wait_until, tmp_path, call):
    source = tmp_path / "program.c"
    arguments = 'char *list[] = {"sh", "-c", "exit $CODE", NULL};'
    calls = {
        "execv": 'execv("/bin/sh", list)',
        "execve": 'execve("/bin/sh", list, environ)',
        "execvp": 'execvp("sh", list)',
        "execvpe": 'execvpe("sh", list, environ)',
        "execl": 'execl("/bin/sh", "sh", "-c", "exit $CODE", NULL)',
        "execlp": 'execlp("sh", "sh", "-c", "exit $CODE", NULL)',
        "execle": 'execle("/bin/sh", "sh", "-c", "exit $CODE", NULL, environ)',
        "fexecve": 'fexecve(open("/bin/sh", O_RDONLY | O_CLOEXEC), list, environ)',
    }
    source.write_text(
        "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        f'int main(void) {{ {arguments} (void)list; setenv("CODE", "21", 1);\n'
        f' execv("/no/such/program", list); {calls[call]}; return 1; }}\n'
    )
    subprocess.run(["cc", "-o", tmp_path / "program", source], check=True)
    done = session.run(str(tmp_path / "program"))
    assert (done.returncode, done.stderr) == (21, "")
    wait_until(lambda: session.named() == {("sh", 21)}, "one connection, that of the shell")


def test_a_static_program_holds_the_connection_that_it_got(session, wait_until, tmp_path):
    (tmp_path / "s.c").write_text("#include <unistd.h>\nint main(void) { char c; return (int)read(0, &c, 1); }\n")
    subprocess.run(["cc", "-static", "-o", tmp_path / "static", tmp_path / "s.c"], check=True)
    program = session.start("sh", "-c", f"exec {tmp_path}/static")
    wait_until(lambda: session.named() == {("static", None)}, "it is shown although the library is not in it")
    program.communicate(timeout=60)
    wait_until(lambda: session.named() == {("static", 0)}, "its end is an orderly one")


def test_a_program_without_the_session_in_its_environment_does_not_get_the_connection(session, wait_until):
    program = session.start("sh", "-c", "exec env -i /bin/cat")
    wait_until(lambda: session.named() == {("cat", 0)}, "the connection ends with exec")
    assert program.poll() is None
    program.communicate(timeout=60)
    assert program.returncode == 0


@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(60)",
        "import os, time; os.fork(); time.sleep(60)",
        "import signal, time; [signal.signal(s, signal.SIG_DFL) for s in (1, 2, 15)]; time.sleep(60)",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)",
        "while True: pass",
    ],
    ids=["asleep", "forked", "own-handlers", "threads", "busy"],
)
def test_a_cancelled_session_ends_its_programs(session, wait_until, program):
    running = session.start(sys.executable, "-c", program)
    wait_until(lambda: len(session.connections()) == 1 + ("fork" in program), "it runs")
    session.juice.client.release_session(session.id)
    _, error = running.communicate(timeout=60)  # returns when the forked child, too, has closed its output
    assert running.returncode == -signal.SIGKILL
    assert f"session {session.id} has been cancelled; its programs are ended" in error
    wait_until(lambda: {c.exit_code for c in session.connections()} == {-1}, "the agent records -1")


def test_a_shell_script_is_ended_with_all_it_has_started(session, wait_until):
    running = session.start("sh", "-c", "sleep 60 | cat; echo survived")
    wait_until(lambda: {name for name, _ in session.named()} == {"sh", "sleep", "cat"}, "all run")
    session.juice.client.release_session(session.id)
    output, _ = running.communicate(timeout=60)
    assert (running.returncode, output) == (-signal.SIGKILL, "")


def test_an_agent_that_goes_away_leaves_the_program_alone_and_it_says_so(session, wait_until):
    running = session.start(sys.executable, "-c", "import os; input(); print('still here'); os.system('true; true')")
    wait_until(session.connections, "it runs")
    session.juice.remove_agent(session.juice.agents[0], crash=True)
    output, error = running.communicate("\n", timeout=60)
    assert (running.returncode, output) == (0, "still here\n")
    assert error.count(GONE) == 1
    assert len(error.splitlines()) <= 2  # a child that posix_spawn made may have something to say, its children not


def test_what_is_started_without_an_agent_runs_and_says_so_once(session):
    session.juice.remove_agent(session.juice.agents[0], crash=True)
    done = session.run("bash", "-c", "true; ls / >/dev/null; sh -c 'true; true'; exit 3")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "no connection to the agent at" in line and "Connection refused" in line and session.id in line


def test_a_program_of_a_session_that_is_over_runs_without_gpus(session, wait_until):
    session.juice.client.release_session(session.id)
    wait_until(lambda: session.juice.client.session(session.id).state == "closed", "closed")
    done = session.run("sh", "-c", "sleep 0.2; exit 3")
    assert done.returncode == 3
    assert "does not take this program" in done.stderr and session.id in done.stderr


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, ""),
        ("", ""),
        ("{}", ""),
        ("[]", "not a JSON object"),
        ("{", "not a JSON object"),
        ('{"id":"a b","servers":["127.0.0.1:1"]}', "not the id of a session"),
        ('{"id":"a"}', "names no agent"),
        ('{"id":"a","servers":[]}', "names no agent"),
        ('{"id":"a","servers":["nowhere"]}', "not host:port"),
        ('{"id":"a","servers":["127.0.0.1:99999"]}', "not host:port"),
        ('{"id":"a\\r\\nX: y","servers":["127.0.0.1:1"]}', "not the id of a session"),
    ],
)
def test_a_bad_configuration_is_named_and_harms_nothing(client_dir, config, says):
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(client_dir / "libjuicejuda.so")}
    if config is not None:
        environment["JUICE_CFG_OVERRIDE"] = config
    done = subprocess.run(["/bin/sh", "-c", "exit 5"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5
    assert says in done.stderr and bool(done.stderr) == bool(says)


# --- it is not noticed -----------------------------------------------------------------------------------------------

DESCRIPTORS = "sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) < 200)"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_descriptors_that_are_closed_stay_closed(session, tmp_path, closed):
    program = tmp_path / "program.py"
    program.write_text(f"import os, sys\nopen(sys.argv[1], 'w').write(repr({DESCRIPTORS}))\n")
    command = f"{sys.executable} {program} {tmp_path}/$NAME {closed}"
    session.run("sh", "-c", command, env={"NAME": "with"})
    subprocess.run(["sh", "-c", command], env={**os.environ, "NAME": "without"}, capture_output=True, timeout=60)
    assert (tmp_path / "with").read_text() == (tmp_path / "without").read_text() != ""


def test_descriptors_and_threads_are_as_without(session):
    program = f"import os; print({DESCRIPTORS}, len(os.listdir('/proc/self/task')))"
    plain = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert session.python(program).stdout == plain.stdout


def test_a_single_threaded_program_stays_one_for_calls_that_ask_for_it(session):
    text = (
        "import ctypes; raise SystemExit(ctypes.CDLL(None, use_errno=True).unshare(0x10000000) and ctypes.get_errno())"
    )
    plain = subprocess.run([sys.executable, "-c", text], timeout=60)
    assert session.python(text).returncode == plain.returncode


def test_a_main_thread_may_leave_before_the_others(session, tmp_path):
    (tmp_path / "p.c").write_text(
        "#include <pthread.h>\n#include <unistd.h>\nstatic void *work(void *x) { usleep(20000); return x; }\n"
        "int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); pthread_exit(0); }\n"
    )
    subprocess.run(["cc", "-pthread", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    assert session.run(str(tmp_path / "p")).returncode == 0


def test_a_program_that_closes_every_descriptor_goes_on(session):
    text = (
        "import os; os.closerange(3, 4096)\n"
        "f = [os.open('/dev/null', os.O_WRONLY) for _ in range(300)]; os.write(f[-1], b'x')"
    )
    done = session.python(text)
    assert (done.returncode, done.stderr) == (0, "")


def test_its_own_sigurg_is_the_programs(session):
    text = (
        "import os, signal\nseen = []\nsignal.signal(signal.SIGURG, lambda *a: seen.append(1))\n"
        "os.kill(os.getpid(), signal.SIGURG)\nassert seen\n"
    )
    assert session.python(text).returncode == 0
    assert session.run("sh", "-c", "kill -URG $$; exit 6").returncode == 6


def test_a_low_limit_of_descriptors_is_no_obstacle(session, wait_until):
    done = session.run("sh", "-c", "ulimit -n 30; ls / >/dev/null; exit 8")
    assert (done.returncode, done.stderr) == (8, "")
    wait_until(lambda: ("ls", 0) in session.named() and ("sh", 8) in session.named(), "both")


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind; to get it: apt-get install valgrind")
def test_memory_is_used_rightly(session):
    done = session.run(
        "valgrind", "-q", "--error-exitcode=99", "sh", "-c", "ls / >/dev/null; exit 4", env={"LC_ALL": "C"}
    )
    assert done.returncode == 4, done.stderr
