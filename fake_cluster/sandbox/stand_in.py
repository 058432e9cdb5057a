"""A stand-in for one of Slurm's commands: hands its words to the sandbox and prints what comes back. Stdlib only.

Run as `python -I -S stand_in.py SOCKET COMMAND [WORD ...]`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> int:
    path, command, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    request = {
        "op": "slurm",
        "command": command,
        "words": words,
        "cwd": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if name != "_"},
    }
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        print(f"{command}: error: the sandbox is down; to start it again: juice-sim up", file=sys.stderr)
        return 1
    interrupted = []
    if command == "srun":
        # As srun does: the first Ctrl-C asks, the second within a second ends; here the first one ends.
        def stop(number: int, frame: object) -> None:
            interrupted.append(number)
            connection.shutdown(socket.SHUT_WR)  # the sandbox cancels the job and still tells how it ended

        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, stop)
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb") as answers:
        for line in answers:
            answer = json.loads(line)
            if "out" in answer:
                sys.stdout.write(answer["out"])
                sys.stdout.flush()
            elif "err" in answer:
                sys.stderr.write(answer["err"])
                sys.stderr.flush()
            elif "stdin" in answer:
                text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
                connection.sendall(json.dumps({"stdin": text}).encode() + b"\n")
            elif "step" in answer:
                connection.close()
                return step(answer["step"])
            elif "error" in answer:
                print(f"{command}: error: {answer['error']}", file=sys.stderr)
                return 1
            else:
                return int(answer["exit"])
    if interrupted:
        return 128 + interrupted[0]
    print(f"{command}: error: the sandbox went down", file=sys.stderr)
    return 1


def step(words: list[str]) -> int:
    """srun inside a job: a step, which uses the job's session. One process, here."""
    os.environ.setdefault("SLURM_STEP_ID", "0")
    os.environ.setdefault("SLURM_STEPID", "0")
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"slurmstepd: error: execve(): {words[0]}: {error.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
