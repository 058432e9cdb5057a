"""Make the nodes of a fake cluster cheap: leave out of a Ray node what only a real machine needs.

Ray has no switch for this, so the one function through which it starts processes (`ray._private.services.
start_ray_process`) is wrapped, in the processes of our own clusters only: `ray start` (by RAY_START_HOOK) and the
autoscaler's monitor (by our node provider). Where a later Ray starts its raylets in another way, the command is passed
on as it is: the nodes are then heavier, not broken. `RAY_FAKE_CLUSTER_FULL_NODES=1` switches all of this off.

What a node saves (2 cores, ray 2.60): see docs/decisions/050-cheap-fake-nodes.md.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STAND_IN = str(Path(__file__).with_name("agent_stand_in.py"))
FULL_NODES = "RAY_FAKE_CLUSTER_FULL_NODES"

_DASHBOARD_AGENT = "--dashboard_agent_command="
_RUNTIME_ENV_AGENT = "--runtime_env_agent_command="
_NODE_ID = "--node_id="
_SESSION_DIR = "--session_dir="
# Names of the files in which a raylet looks for its agents' ports.
_DASHBOARD_AGENT_PORTS = "metrics_agent_port,metrics_export_port,dashboard_agent_listen_port"
_RUNTIME_ENV_AGENT_PORT = "runtime_env_agent_port"


def full_nodes_wanted() -> bool:
    """True when the environment asks for nodes with all of Ray's processes."""
    return os.environ.get(FULL_NODES, "") not in ("", "0")


def lean_raylet_command(command: list[str]) -> list[str]:
    """The raylet's command with stand-ins for both agents; `command` itself when it is not as expected."""
    by_flag = {}
    for position, word in enumerate(command):
        for flag in (_DASHBOARD_AGENT, _RUNTIME_ENV_AGENT, _NODE_ID, _SESSION_DIR):
            if word.startswith(flag):
                by_flag[flag] = (position, word[len(flag) :])
    if len(by_flag) < 4:
        return command
    session_dir, node_id = by_flag[_SESSION_DIR][1], by_flag[_NODE_ID][1]
    stand_in = [sys.executable, "-I", "-S", STAND_IN]
    lean = list(command)
    position, _ = by_flag[_DASHBOARD_AGENT]
    idle = [*stand_in, "idle", session_dir, node_id, _DASHBOARD_AGENT_PORTS]
    lean[position] = _DASHBOARD_AGENT + subprocess.list2cmdline(idle)
    position, real = by_flag[_RUNTIME_ENV_AGENT]
    lazy = [*stand_in, "lazy", session_dir, node_id, _RUNTIME_ENV_AGENT_PORT, "--runtime-env-agent-port", "--"]
    lean[position] = f"{_RUNTIME_ENV_AGENT}{subprocess.list2cmdline(lazy)} {real}"
    return lean


def start_lean_raylets() -> None:
    """From now on this process starts raylets with `lean_raylet_command`. Calling it again changes nothing."""
    from ray._private import services

    start = services.start_ray_process
    if full_nodes_wanted() or getattr(start, "starts_lean_raylets", False):
        return

    @functools.wraps(start)
    def start_ray_process(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        if process_type == "raylet":
            command = lean_raylet_command(command)
        return start(command, process_type, *args, **kwargs)

    start_ray_process.starts_lean_raylets = True  # type: ignore[attr-defined]
    services.start_ray_process = start_ray_process
