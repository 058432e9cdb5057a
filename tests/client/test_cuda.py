"""CUDA's driver calls from a session, as a linked C program and as Python's ctypes make them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler

GIB = 1 << 30
HALF = GIB // 2
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, NOT_FOUND = 46, 100, 101, 201, 500

# A program in Python begins with this: short names for the calls, with their results.
PRELUDE = """
import ctypes, sys, os
cuda = ctypes.CDLL("libcuda.so.1")
S, P = ctypes.c_size_t, ctypes.c_uint64
def total(d=0):
    n = S(); assert cuda.cuDeviceTotalMem_v2(ctypes.byref(n), d) == 0; return n.value
def info():
    a, b = S(), S(); rc = cuda.cuMemGetInfo_v2(ctypes.byref(a), ctypes.byref(b)); return rc, a.value, b.value
def alloc(n):
    p = P(); rc = cuda.cuMemAlloc_v2(ctypes.byref(p), S(n)); return rc, p.value
def free(p):
    return cuda.cuMemFree_v2(P(p))
def context(d=0):
    c = ctypes.c_void_p(); assert cuda.cuCtxCreate_v2(ctypes.byref(c), 0, d) == 0; return c
def wait():
    print("ready", flush=True); return sys.stdin.readline()
"""


def python(session, program, **more):
    done = session.python(PRELUDE + program, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def start(session, program):
    """A program that has printed "ready" and waits for a line."""
    running = session.start(sys.executable, "-c", PRELUDE + program)
    assert running.stdout.readline() == "ready\n", running.communicate()[1]
    return running


@pytest.fixture(scope="module")
def look(tmp_path_factory, client_dir) -> Path:
    """The C program, linked against what programs call libcuda."""
    program = tmp_path_factory.mktemp("look") / "look"
    source = Path(__file__).with_name("look.c")
    subprocess.run(["cc", "-Wall", "-Werror", "-o", program, source, f"-L{client_dir}", "-lcuda"], check=True)
    needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in needed
    return program


def test_a_linked_program_in_a_slice_of_1_gib_sees_1_gib(session, look):
    done = session.run(str(look))
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "cuInit: CUDA_SUCCESS",
        f"1 device, NVIDIA A10, {GIB} bytes",
        "without a context: CUDA_ERROR_INVALID_CONTEXT",
        "cuCtxCreate: CUDA_SUCCESS",
        f"at first: CUDA_SUCCESS free {GIB} total {GIB}",
        "half: CUDA_SUCCESS",
        "half and a byte: CUDA_ERROR_OUT_OF_MEMORY",
        "the other half: CUDA_SUCCESS",
        "one byte: CUDA_ERROR_OUT_OF_MEMORY",
        f"full: CUDA_SUCCESS free 0 total {GIB}",
        "apart: 1",
        "free: CUDA_SUCCESS",
        "free twice: CUDA_ERROR_INVALID_VALUE",
        "free what never was: CUDA_ERROR_INVALID_VALUE",
        f"after: CUDA_SUCCESS free {HALF} total {GIB}",
        "cuCtxDestroy: CUDA_SUCCESS",
        "end: CUDA_SUCCESS",
        f"a new context: CUDA_SUCCESS free {GIB} total {GIB}",
    ]


def test_a_ctypes_script_in_a_slice_of_1_gib_sees_1_gib(session):
    text = f"""
print(cuda.cuInit(0), total()); c = context()
print(*info()); rc, p = alloc({HALF}); print(rc, alloc({HALF} + 1)[0]); print(*info()); print(free(p)); print(*info())
"""
    assert [int(word) for word in python(session, text)] == [
        *(SUCCESS, GIB),
        *(SUCCESS, GIB, GIB),
        *(SUCCESS, OUT_OF_MEMORY),
        *(SUCCESS, HALF, GIB),
        SUCCESS,
        *(SUCCESS, GIB, GIB),
    ]


def test_two_processes_of_a_session_share_the_slice(session, wait_until):
    first = start(session, f"cuda.cuInit(0); context(); rc, p = alloc({HALF}); wait(); print(rc, free(p)); wait()")
    second = "cuda.cuInit(0); context(); print(*info()); print(alloc(%d)[0], alloc(%d)[0])"
    assert [int(w) for w in python(session, second % (HALF + 1, HALF))] == [
        *(SUCCESS, HALF, GIB),
        *(OUT_OF_MEMORY, SUCCESS),
    ]
    wait_until(lambda: session.used() == HALF, "the controller is told what is in use")
    first.stdin.write("\n")
    first.stdin.flush()
    assert first.stdout.readline().split() == ["0", "0"] and first.stdout.readline() == "ready\n"
    assert [int(w) for w in python(session, second % (GIB + 1, GIB))][3:] == [OUT_OF_MEMORY, SUCCESS]
    first.communicate("\n", timeout=60)


def test_what_a_killed_process_held_is_free_again(session, wait_until):
    running = start(session, f"cuda.cuInit(0); context(); print(alloc({GIB})[0] and 'failed' or '', end=''); wait()")
    wait_until(lambda: session.used() == GIB, "the slice is in use")
    running.kill()
    running.communicate(timeout=60)
    wait_until(lambda: session.ended(running.pid) == -1, "the agent has seen its end")
    assert python(session, f"cuda.cuInit(0); context(); print(alloc({GIB})[0])") == ["0"]
    wait_until(lambda: session.used() == 0, "nothing is in use")


def test_two_sessions_on_one_gpu_do_not_see_each_other(make_session):
    one, other = make_session(), make_session(2 * GIB)
    running = start(one, f"cuda.cuInit(0); context(); assert alloc({GIB})[0] == 0; wait()")
    assert [int(w) for w in python(other, "cuda.cuInit(0); context(); print(*info())")] == [0, 2 * GIB, 2 * GIB]
    running.communicate("\n", timeout=60)


def test_every_gpu_of_a_session_has_its_own_memory(make_session):
    session = make_session(0, gpus=2)
    text = """
assert cuda.cuInit(0) == 0
n = ctypes.c_int(); cuda.cuDeviceGetCount(ctypes.byref(n)); print(n.value, total(0) == total(1) > 20 << 30)
ids = []
for d in (0, 1):
    u = (ctypes.c_ubyte * 16)(); assert cuda.cuDeviceGetUuid(u, d) == 0; ids.append(bytes(u).hex())
print(*ids)
a = context(0); print(alloc(total(0))[0], info()[1])
b = context(1); print(info()[1] == total(1), alloc(total(1) + 1)[0])
print(cuda.cuCtxDestroy_v2(b), cuda.cuCtxSetCurrent(a), info()[1])
"""
    words = python(session, text)
    assert words[:2] == ["2", "True"]
    (agent,) = session.juice.client.agents()
    assert {f"GPU-{w[:8]}-{w[8:12]}-{w[12:16]}-{w[16:20]}-{w[20:]}" for w in words[2:4]} == {g.uuid for g in agent.gpus}
    assert words[4:] == ["0", "0", "True", str(OUT_OF_MEMORY), "0", "0", "0"]


@pytest.mark.parametrize(
    ("visible", "count", "first"),
    [("0,1", 2, 0), ("1,0", 2, 1), ("1", 1, 1), ("0,5,1", 1, 0), ("0,0", 1, 0), (" 1 , 0 ", 2, 1), ("UUID1", 1, 1)],
)
def test_cuda_visible_devices_chooses_and_orders(make_session, visible, count, first):
    session = make_session(0, gpus=2)
    (agent,) = session.juice.client.agents()
    by_index = [gpu.uuid for gpu in agent.gpus]
    order = [by_index[grant.index] for grant in session.juice.client.session(session.id).gpus]
    text = """
print(cuda.cuInit(0)); n = ctypes.c_int(); cuda.cuDeviceGetCount(ctypes.byref(n)); print(n.value)
u = (ctypes.c_ubyte * 16)(); cuda.cuDeviceGetUuid(u, 0); print(bytes(u).hex())
"""
    words = python(session, text, env={"CUDA_VISIBLE_DEVICES": visible.replace("UUID1", order[1][:12])})
    assert words == ["0", str(count), order[first].removeprefix("GPU-").replace("-", "")]


def test_cuda_visible_devices_may_hide_all(session):
    for nothing in ("", "-1", "none", "7"):
        assert python(session, "print(cuda.cuInit(0))", env={"CUDA_VISIBLE_DEVICES": nothing}) == [str(NO_DEVICE)]


def test_errors_are_those_of_the_api(session):
    text = """
n = ctypes.c_int(); c = ctypes.c_void_p()
print(cuda.cuDeviceGetCount(ctypes.byref(n)), alloc(1)[0], cuda.cuInit(1))
cuda.cuInit(0); print(cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(n), 1), cuda.cuDeviceGet(None, 0))
print(alloc(1)[0], info()[0], cuda.cuCtxCreate_v2(ctypes.byref(c), 0, 3), cuda.cuCtxDestroy_v2(None))
context(); print(alloc(0)[0], free(0), free(12345), cuda.cuMemAlloc_v2(None, S(1)), alloc(2**63)[0])
for a in (75, 16): print(cuda.cuDeviceGetAttribute(ctypes.byref(n), a, 0), n.value)
print(cuda.cuDriverGetVersion(ctypes.byref(n)), n.value)
"""
    assert [int(w) for w in python(session, text)] == [
        *(NOT_INITIALIZED, NOT_INITIALIZED, INVALID_VALUE),
        *(SUCCESS, INVALID_DEVICE, INVALID_VALUE),
        *(INVALID_CONTEXT, INVALID_CONTEXT, INVALID_DEVICE, INVALID_CONTEXT),
        *(INVALID_VALUE, SUCCESS, INVALID_VALUE, INVALID_VALUE, OUT_OF_MEMORY),
        *(SUCCESS, 8, SUCCESS, 72),
        *(SUCCESS, 12040),
    ]


def test_contexts_stack_and_a_destroyed_one_gives_its_memory_back(session):
    text = f"""
cuda.cuInit(0); a = context(); alloc({HALF}); b = context(); alloc({HALF}); x = ctypes.c_void_p()
print(info()[1], cuda.cuCtxDestroy_v2(b)); print(info()[1])
cuda.cuCtxGetCurrent(ctypes.byref(x)); print(x.value == a.value)
p = ctypes.c_void_p(); print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(p), 0), cuda.cuCtxPushCurrent_v2(p))
print(alloc({HALF})[0], info()[1], cuda.cuDevicePrimaryCtxRelease_v2(0), info()[0])
print(cuda.cuCtxPopCurrent_v2(ctypes.byref(x)), info()[1], cuda.cuDevicePrimaryCtxRelease_v2(0))
"""
    assert python(session, text) == [
        *("0", "0", str(HALF), "True", "0", "0"),
        *("0", "0", "0", "709"),
        *("0", str(HALF), str(INVALID_CONTEXT)),
    ]


def test_functions_are_found_by_name(session):
    text = """
f = ctypes.c_void_p(); s = ctypes.c_int(9)
for name in (b"cuInit", b"cuMemAlloc", b"cuGetProcAddress", b"cuNoSuchThing"):
    rc = cuda.cuGetProcAddress_v2(name, ctypes.byref(f), 12000, ctypes.c_uint64(0), ctypes.byref(s))
    print(rc, s.value, bool(f.value))
cuda.cuGetProcAddress(b"cuMemAlloc", ctypes.byref(f), 12000, ctypes.c_uint64(0))
print(f.value == ctypes.cast(cuda.cuMemAlloc_v2, ctypes.c_void_p).value)
"""
    assert python(session, text) == ["0", "0", "True"] * 3 + [str(NOT_FOUND), "1", "False", "True"]


def test_a_forked_child_cannot_use_what_its_parent_has_initialised(session):
    text = """
cuda.cuInit(0); context()
pid = os.fork()
if pid == 0: os._exit(cuda.cuInit(0) * 10 + alloc(1)[0])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), alloc(1)[0])
"""
    assert python(session, text) == [str(NOT_INITIALIZED * 11), "0"]


def test_a_forked_child_that_is_the_first_has_its_own_account(session, wait_until):
    text = f"""
import signal
pid = os.fork()
if pid == 0:
    cuda.cuInit(0); context(); assert alloc({HALF})[0] == 0; os._exit(0 if info()[1] == {HALF} else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert python(session, text) == ["0"]
    wait_until(lambda: session.used() == 0, "given back")


def test_threads_may_allocate_at_once(session):
    text = f"""
import threading
cuda.cuInit(0); c = context(); got = []
def work():
    cuda.cuCtxSetCurrent(c)
    for _ in range(50):
        rc, p = alloc({GIB} // 400); got.append(rc)
        if rc == 0 and len(got) % 2: free(p)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(got), set(got)); cuda.cuCtxDestroy_v2(c); context(); print(info()[1])
"""
    assert python(session, text) == ["400", "{0}", str(GIB)]


def test_without_the_agent_calls_fail_and_the_program_decides(session):
    running = start(session, "cuda.cuInit(0); context(); wait(); print(alloc(1)[0], info()[0], cuda.cuInit(0))")
    session.juice.remove_agent(session.juice.agents[0], crash=True)
    output, error = running.communicate("\n", timeout=60)
    assert (running.returncode, output) == (0, f"{DEVICE_UNAVAILABLE} {DEVICE_UNAVAILABLE} 0\n")
    assert error.count("is gone") == 1
    assert python(session, "print(cuda.cuInit(0))") == [str(NO_DEVICE)]


def test_a_program_that_was_told_nothing_of_a_session_has_no_gpu(client_dir):
    text = 'import ctypes; print(ctypes.CDLL("libcuda.so.1").cuInit(0))'
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(client_dir)}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{NO_DEVICE}\n", "")


# --- nvidia-smi ------------------------------------------------------------------------------------------------------


def smi(session, *arguments, **more):
    return session.run("sh", "-c", 'nvidia-smi "$@"', "sh", *arguments, **more)


def test_nvidia_smi_is_found_in_the_job_and_prints_the_usual_table(session):
    lines = smi(session).stdout.splitlines()
    frame = [line for line in lines[1:] if line]
    assert {len(line) for line in frame} == {91} and all(line[0] in "+|" and line[-1] in "+|" for line in frame)
    text = "\n".join(lines)
    assert re.search(r"\| NVIDIA-SMI \S+ +Driver Version: \S+ +CUDA Version: 12\.4 +\|", text)
    assert re.search(r"\|   0  NVIDIA A10 +On  \|   [0-9A-F:.]{16} Off \|", text)
    assert re.search(r"\| +0MiB / +1024MiB \|", text) and "No running processes found" in text


def test_nvidia_smi_shows_what_processes_use(session):
    running = start(session, f"cuda.cuInit(0); context(); alloc({HALF}); wait()")
    text = smi(session).stdout
    assert re.search(r"\| +512MiB / +1024MiB \|", text)
    assert re.search(rf"\| +0   N/A  N/A +{running.pid} +C   python\S* +512MiB \|", text)
    apps = smi(session, "--query-compute-apps=pid,used_memory", "--format=csv,noheader").stdout
    assert apps == f"{running.pid}, 512 MiB\n"
    running.communicate("\n", timeout=60)


def test_nvidia_smi_lists_and_answers_queries(make_session):
    session = make_session(0, gpus=2)
    uuids = [gpu.uuid for gpu in session.juice.client.agents()[0].gpus]
    lines = smi(session, "-L").stdout.splitlines()
    assert sorted(lines) == sorted(f"GPU {at}: NVIDIA A10 (UUID: {uuids[at]})" for at in (0, 1))
    query = "--query-gpu=name,memory.total,memory.used"
    total = session.juice.client.agents()[0].gpus[0].vram >> 20
    assert smi(session, query, "--format=csv").stdout.splitlines() == [
        "name, memory.total [MiB], memory.used [MiB]",
        *[f"NVIDIA A10, {total} MiB, 0 MiB"] * 2,
    ]
    assert smi(session, query, "--format=csv,noheader,nounits").stdout.splitlines() == [f"NVIDIA A10, {total}, 0"] * 2
    assert smi(session, query, "--format=csv,nounits").stdout.splitlines()[0] == "name, memory.total, memory.used"
    assert smi(session, "-i", "1", "--query-gpu=index", "--format=csv,noheader").stdout == "1\n"
    assert smi(session, f"--id={uuids[0]}", "--query-gpu", "uuid", "--format", "csv,noheader").stdout == f"{uuids[0]}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--query-gpu=name,nonsense", "--format=csv"], 2, '"nonsense" is not a valid field'),
        (["--query-gpu=name"], 2, "--format="),
        (["--format=xml"], 2, "Invalid combination"),
        (["--nonsense"], 2, "Invalid combination"),
        (["-i", "4"], 6, "No devices were found"),
        (["-h"], 0, "--query-gpu"),
    ],
)
def test_nvidia_smi_says_what_it_does_not_know(session, arguments, code, says):
    done = smi(session, *arguments)
    assert done.returncode == code and says in done.stdout + done.stderr


def test_nvidia_smi_outside_a_session_leaves_the_place_to_the_real_one(client_dir, tmp_path):
    environment = {"PATH": f"{client_dir}:/usr/bin:/bin"}
    done = subprocess.run(
        ["nvidia-smi"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        executable=client_dir / "nvidia-smi",
    )
    assert done.returncode == 9 and "couldn't communicate with the NVIDIA driver" in done.stdout
    real = tmp_path / "nvidia-smi"
    real.write_text("#!/bin/sh\necho real $1\n")
    real.chmod(0o755)
    environment["PATH"] += f":{tmp_path}"
    done = subprocess.run(
        [client_dir / "nvidia-smi", "-L"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "real -L\n"


def test_nvidia_smi_works_in_a_session_without_the_preload(session):
    environment = session.environment()
    del environment["LD_PRELOAD"]
    done = subprocess.run(
        [session.directory / "nvidia-smi", "-L"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("GPU 0: NVIDIA A10 (UUID: GPU-")
