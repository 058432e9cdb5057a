"""What the head node of an AutoscalingCluster does differently: called by `ray start` through RAY_START_HOOK."""

from __future__ import annotations

import importlib
import os
from typing import Any

from fake_cluster.lean_node import full_nodes_wanted, start_lean_raylets

CLIENT_SERVER = "RAY_FAKE_CLUSTER_CLIENT_SERVER"
DASHBOARD = "RAY_FAKE_CLUSTER_DASHBOARD"
USERS_HOOK = "RAY_FAKE_CLUSTER_USERS_START_HOOK"


def prepare(ray_params: Any, head: bool) -> None:
    """Leave out the Ray Client server (its port cannot be chosen by the kernel), the API server and the agents, unless
    they were asked for. A hook that the user had set runs afterwards."""
    if os.environ.get(CLIENT_SERVER) != "1":
        ray_params.ray_client_server_port = None
    if head and os.environ.get(DASHBOARD) != "1" and not full_nodes_wanted():
        _leave_out_api_server()
        start_lean_raylets()
    if users_hook := os.environ.get(USERS_HOOK):
        module, _, name = users_hook.rpartition(".")
        getattr(importlib.import_module(module), name)(ray_params, head)


def _leave_out_api_server() -> None:
    """Even with `--include-dashboard=false` Ray starts an API server, for usage statistics only, and waits for it."""
    from ray._private.node import Node

    def start_api_server(self: Any, *, include_dashboard: Any = None, raise_on_failure: bool = False) -> None:
        self._webui_url = None

    Node.start_api_server = start_api_server
