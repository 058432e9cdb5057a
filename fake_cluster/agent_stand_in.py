"""Run in place of a fake node's dashboard agent or runtime-env agent until a real one is needed.

A raylet insists on both agents: it starts them, waits until each has written its port to a file of the session
directory, and dies when one of them ends. Each is a Python process of 50-75 MB (proportional set size) and 0.7-1.6 s of
CPU, by far the greater part of what a fake node costs, and most fake nodes never use either.

    agent_stand_in.py idle  SESSION_DIR NODE_ID PORT_NAME[,PORT_NAME...]
        writes a port of 1 for each name and waits. For the dashboard agent, where there is no dashboard: nothing
        answers at that port, which Ray takes as "metrics are not exported".
    agent_stand_in.py lazy  SESSION_DIR NODE_ID PORT_NAME FLAG -- COMMAND...
        listens; when the first caller connects, it becomes COMMAND with FLAG=<that port> and answers the retry. For
        the runtime-env agent: the raylet calls it only for tasks and actors that have a runtime_env.

Standard library only; started as `python -I -S`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def write_port(session_dir: str, name: str, node_id: str, port: int) -> None:
    """Publish a port where the raylet waits for it: `<session dir>/<name>_<node id>`, complete or not there at all."""
    path = os.path.join(session_dir, f"{name}_{node_id}")
    with open(path + ".new", "w") as file:
        file.write(str(port))
    os.replace(path + ".new", path)


def die_with_parent() -> None:
    """End when the raylet ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def main(arguments: list[str]) -> None:
    kind, session_dir, node_id, names = arguments[:4]
    die_with_parent()
    if kind == "idle":
        for name in names.split(","):
            write_port(session_dir, name, node_id, 1)
        while True:
            signal.pause()
    flag, separator, *command = arguments[4:]
    if kind != "lazy" or separator != "--" or not command:
        sys.exit(f"usage: {__doc__}")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    host = next((word.partition("=")[2] for word in command if word.startswith("--node-ip-address=")), "127.0.0.1")
    listener.bind((host, 0))
    listener.listen()
    port = listener.getsockname()[1]
    write_port(session_dir, names, node_id, port)
    caller, _ = listener.accept()
    # The caller is sent away without an answer and tries again; by then the real agent listens on the same port.
    caller.close()
    listener.close()
    command = [f"{flag}={port}" if word.startswith(flag + "=") else word for word in command]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
