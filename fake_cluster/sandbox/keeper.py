"""The process that keeps a sandbox together: it survives the shell, starts the server, and leaves nothing behind.

It is the subreaper of all that the sandbox starts. SIGTERM is passed on to the server, which takes everything down in
order. When the server ends, in whatever way, everything that still descends from the keeper is killed. Should the
keeper itself be killed, the kernel tells the server, which takes everything down. Run as
`python -m fake_cluster.sandbox.keeper NAME DIRECTORY STATUS_FD`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from ..slurm.supervisor import PR_SET_CHILD_SUBREAPER, descendants, kill, prctl
from .places import Place


def _end_descendants() -> None:
    while doomed := descendants(os.getpid()):
        for pid in doomed:
            kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)
    _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def main() -> int:
    place, status = Place(sys.argv[1], Path(sys.argv[2])), int(sys.argv[3])
    for sig in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    place.record("keeper", os.getpid())
    asked = False
    server: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if server is not None and server.returncode is None:
            server.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    server = subprocess.Popen(
        [sys.executable, "-m", "fake_cluster.sandbox.server", place.name, str(place.directory), str(status)],
        pass_fds=[status],
        stdin=subprocess.DEVNULL,
    )
    os.close(status)
    if asked:
        server.send_signal(signal.SIGTERM)
    while True:
        # Adopted orphans end here too; only the server's end counts.
        try:
            pid, code = os.waitpid(-1, 0)
        except InterruptedError:
            continue
        if pid == server.pid:
            server.returncode = os.waitstatus_to_exitcode(code)
            break
    _end_descendants()
    return 0


if __name__ == "__main__":
    sys.exit(main())
