"""AutoscalingCluster: a Ray cluster of fake nodes on this machine, with Ray's own autoscaler.

A drop-in for `ray.cluster_utils.AutoscalingCluster`, which needs a file that Ray's wheels do not ship, runs `ray stop
--force` (every Ray of the user on the machine dies), empties the dictionaries it is given and cannot have custom
resources on the head. This one runs beside other Rays and beside itself, and stops what it started, also when the
process that made it is killed.
"""

from __future__ import annotations

import json
import os
import random as random_module
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .autoscaling_config import (
    PREDEFINED_RESOURCES,
    ConfigError,
    autoscaling_config,
    completed,
    merge_config,
    read_autoscaling_config,
    write_config,
)
from .cluster_status import ClusterStatus, NodeStatus, autoscaler_errors, read_status
from .process_tree import ProcessTree, kill_with_descendants
from .ray_start_hook import CLIENT_SERVER, DASHBOARD, USERS_HOOK

# Ray's fake node provider counts node ids up from this one, so that nodes and instances can be matched.
HEAD_NODE_ID = "f" * 51 + "00000"
# Unix sockets have paths of at most 107 bytes, and Ray adds up to 69 of its own to the directory that it is given.
LONGEST_TEMP_DIR = 38
_PROJECT_ROOT = Path(__file__).resolve().parent.parent

# What makes a Ray of many small nodes lighter without changing what a program sees.
LIGHT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_open_telemetry": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    # A killed raylet refuses connections at once: look every second (3 s by default), five failures as usual.
    "RAY_health_check_period_ms": "1000",
    # Port 0: chosen by the kernel, so that clusters do not compete for one port.
    "AUTOSCALER_METRIC_PORT": "0",
    "DASHBOARD_METRIC_PORT": "0",
}
# Would tie the new cluster to another one when this process is itself a Ray driver or worker.
_NOT_INHERITED = ("RAY_ADDRESS", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_NODE_ID", "RAY_OVERRIDE_RESOURCES")

# Addresses of the clusters of this process, latest last: `ray.init("auto")` goes to the latest, as Ray's class has it.
_active: list[str] = []
_address_before: list[str | None] = []


class AutoscalingCluster:
    """Create a local autoscaling cluster for testing.

    `head_resources`: resources of the head node, Ray's names (`CPU`, `GPU`, `memory`, `object_store_memory`, custom
    ones). `worker_node_types`: as `available_node_types` in a cluster configuration. `autoscaler_v2`: which of Ray's
    autoscalers. `head_labels`: labels of the head node. Other keyword arguments are further keys of the configuration
    (`max_workers`, `idle_timeout_minutes`, `upscaling_speed`, `provider`, ...). ConfigError names the key at fault.

    Nothing is started before `start()`. Use it as a context manager, or call `shutdown()`; if neither happens, the
    cluster ends with this process.
    """

    def __init__(
        self,
        head_resources: dict[str, float],
        worker_node_types: dict[str, Any],
        autoscaler_v2: bool = False,
        *,
        head_labels: Mapping[str, str] | None = None,
        **config_kwargs: Any,
    ) -> None:
        config = autoscaling_config(head_resources, worker_node_types, head_labels, **config_kwargs)
        self._set_up(config, autoscaler_v2)

    @classmethod
    def from_config(cls, config: str | Path | Mapping[str, Any], autoscaler_v2: bool = False) -> AutoscalingCluster:
        """A cluster as a complete configuration (a file or its content, e.g. example.yaml) describes it."""
        cluster = cls.__new__(cls)
        given = completed(config) if isinstance(config, Mapping) else read_autoscaling_config(Path(config))
        cluster._set_up(given, autoscaler_v2)
        return cluster

    def _set_up(self, config: dict[str, Any], autoscaler_v2: bool) -> None:
        self._config = config
        self._autoscaler_v2 = autoscaler_v2
        self._tree: ProcessTree | None = None
        self._temp_dir: Path | None = None
        self._address: str | None = None

    # --- life ---

    def start(
        self,
        _system_config: dict[str, Any] | None = None,
        override_env: dict[str, str] | None = None,
        *,
        timeout: float = 120.0,
        include_dashboard: bool = False,
        client_server_port: int | None = None,
    ) -> None:
        """Start the head and the autoscaler. After this call returns, `ray.init("auto")` connects to it.

        Returns when the autoscaler has made its first pass; raises TimeoutError or RuntimeError with the autoscaler's
        own error when it does not within `timeout` seconds. Other parts of Ray are left out unless asked for:
        `include_dashboard` (dashboard, state and job APIs, metrics), `client_server_port` (`ray.init("ray://...")`).
        """
        if self._tree is not None:
            raise RuntimeError(f"this cluster runs already, at {self._address}; shut it down before starting it again")
        temp_dir = _make_temp_dir()
        tree = ProcessTree(remove=[temp_dir])
        try:
            config_file = temp_dir / "autoscaling.json"
            write_config(config_file, self._config)
            command = self._head_command(temp_dir, config_file, _system_config, include_dashboard, client_server_port)
            env = self._environment(override_env, include_dashboard, client_server_port)
            self._tree, self._temp_dir = tree, temp_dir
            tree.start(command, env=env, log=temp_dir / "ray-start.log")
            self._wait_until_ready(time.monotonic() + timeout, timeout)
        except BaseException:
            self.shutdown()
            tree.stop(grace_s=0)
            shutil.rmtree(temp_dir, ignore_errors=True)
            raise
        self._publish_address()

    def shutdown(self) -> None:
        """Stop every process of this cluster, and no other. Returns when they are gone. Twice is fine."""
        tree, self._tree = self._tree, None
        if tree is None:
            return
        try:
            self._withdraw_address()
        finally:
            tree.stop()
            if self._temp_dir is not None:
                shutil.rmtree(self._temp_dir, ignore_errors=True)  # when the keeper was killed, it could not
            self._temp_dir = self._address = None

    def __enter__(self) -> AutoscalingCluster:
        if self._tree is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- what it tells ---

    @property
    def address(self) -> str:
        """Address of the GCS, `host:port`, for `ray.init(address)`. RuntimeError while the cluster does not run."""
        if self._address is None:
            raise RuntimeError("this cluster does not run: call start() first")
        return self._address

    gcs_address = address

    @property
    def config(self) -> dict[str, Any]:
        """The autoscaler's configuration (a copy)."""
        return merge_config(self._config, {})

    @property
    def config_file(self) -> Path:
        """The configuration file that the autoscaler reads again every second."""
        return self._running_dir() / "autoscaling.json"

    @property
    def log_dir(self) -> Path:
        """Ray's logs of this cluster; they go with it."""
        return self._running_dir() / "session_latest" / "logs"

    @property
    def pids(self) -> list[int]:
        """Process ids of everything that belongs to this cluster now, the keeper included."""
        if self._tree is None:
            return []
        keeper = [self._tree.keeper_pid] if self._tree.keeper_pid is not None else []
        return keeper + [process.pid for process in self._tree.processes()]

    def status(self) -> ClusterStatus:
        """Nodes, pending launches and unmet demands now. `print(cluster.status())` is for people."""
        address, tree = self.address, self._tree
        assert tree is not None
        return read_status(address, tree.processes(), self.log_dir)

    # --- what can be done to it ---

    def wait_for_nodes(self, n: int, timeout: float = 60.0, *, node_type: str | None = None) -> None:
        """Wait until exactly `n` worker nodes (of one type, or of all) are alive; the head does not count.

        Raises TimeoutError with the status and the end of the autoscaler's log."""
        self._wait(
            lambda: self.status().count(node_type) == n,
            timeout,
            f"{n} worker nodes" + (f" of type {node_type}" if node_type else ""),
        )

    def kill_node(
        self,
        node_id: str | None = None,
        *,
        node_type: str | None = None,
        rand: bool = False,
        random: random_module.Random | None = None,
    ) -> str:
        """Kill one worker node as a power loss would: its raylet, workers and agents, by SIGKILL. Returns its id.

        Which one: by `node_id`; the longest-lived of a `node_type`; any (`rand=True`, or `random=` a generator of
        your own, for runs that can be repeated; together with `node_type`, any of that type). KeyError when there is
        no such living worker node.
        """
        if (node_id is not None) + (node_type is not None or rand or random is not None) != 1:
            raise ValueError(
                "say which node to kill: node_id, node_type, or rand=True; got " + repr((node_id, node_type))
            )
        workers = sorted(self.status().workers, key=lambda node: node.node_id)
        chosen = [
            node for node in workers if node.node_id == node_id or (not node_id and node_type in (None, node.node_type))
        ]
        if not chosen:
            wanted = f"with id {node_id}" if node_id else f"of type {node_type}" if node_type else "at all"
            living = ", ".join(f"{node.node_id[-5:]} ({node.node_type})" for node in workers) or "none"
            raise KeyError(f"there is no living worker node {wanted}; living: {living}")
        any_of_them = rand or random is not None
        victim = (random or random_module.Random()).choice(chosen) if any_of_them else chosen[0]
        assert victim.pid is not None
        kill_with_descendants(victim.pid)
        self._wait(lambda: not self._node(victim.node_id).alive, 30, f"the end of node {victim.node_id}")
        return victim.node_id

    def update_config(self, changes: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Change the configuration, also while the cluster runs: the autoscaler picks it up with its next pass.

        Merged key by key at any depth: `update_config(available_node_types={"gpu": {"max_workers": 3}})` leaves all
        else as it is; None takes a key (e.g. a node type) away. A configuration that would not work raises
        ConfigError and changes nothing."""
        config = completed(merge_config(merge_config(self._config, changes or {}), more))
        self._config = config
        if self._tree is not None:
            write_config(self.config_file, config)

    # --- inside ---

    def _running_dir(self) -> Path:
        if self._temp_dir is None:
            raise RuntimeError("this cluster does not run: call start() first")
        return self._temp_dir

    def _node(self, node_id: str) -> NodeStatus:
        return next(node for node in self.status().nodes if node.node_id == node_id)

    def _head_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self._config["available_node_types"][self._config["head_node_type"]]
        return spec

    def _head_command(
        self,
        temp_dir: Path,
        config_file: Path,
        system_config: dict[str, Any] | None,
        include_dashboard: bool,
        client_server_port: int | None,
    ) -> list[str]:
        resources = dict(self._head_spec()["resources"])
        command = [
            sys.executable,
            *("-m", "ray.scripts.scripts", "start", "--head", "--block"),
            f"--autoscaling-config={config_file}",
            f"--temp-dir={temp_dir}",
            # 0: the kernel chooses, at the moment of binding, so that nobody can take the port in between.
            *("--port=0", "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
            f"--include-dashboard={str(include_dashboard).lower()}",
            "--disable-usage-stats",
        ]
        if client_server_port is not None:
            command.append(f"--ray-client-server-port={client_server_port}")
        for resource in PREDEFINED_RESOURCES:
            if resource in resources:
                flag = {"CPU": "num-cpus", "GPU": "num-gpus"}.get(resource, resource.replace("_", "-"))
                command.append(f"--{flag}={int(resources.pop(resource))}")
        if resources:
            command.append(f"--resources={json.dumps(resources)}")
        if labels := self._head_spec().get("labels"):
            labels_file = temp_dir / "head-labels.json"
            labels_file.write_text(json.dumps(labels))
            command.append(f"--labels-file={labels_file}")
        if system_config is not None:
            command.append(f"--system-config={json.dumps(system_config, separators=(',', ':'))}")
        return command

    def _environment(
        self, override_env: dict[str, str] | None, include_dashboard: bool, client_server_port: int | None
    ) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        for name, value in LIGHT.items():
            env.setdefault(name, value)
        if include_dashboard:
            env["RAY_enable_metrics_collection"] = "1"
        if users_hook := env.get("RAY_START_HOOK"):
            env[USERS_HOOK] = users_hook
        # The monitor imports our node provider, `ray start` our hook, and neither knows this process's sys.path.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PROJECT_ROOT), env.get("PYTHONPATH")]))
        if mode := _agreed_authentication():
            env["RAY_AUTH_MODE"] = mode
        env |= {
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_START_HOOK": "fake_cluster.ray_start_hook.prepare",
            "RAY_enable_autoscaler_v2": "1" if self._autoscaler_v2 else "0",
            "RAY_CLOUD_INSTANCE_ID": HEAD_NODE_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_NODE_ID,
            "RAY_NODE_TYPE_NAME": self._config["head_node_type"],
            DASHBOARD: "1" if include_dashboard else "0",
            CLIENT_SERVER: "1" if client_server_port is not None else "0",
        }
        return env | (override_env or {})

    def _wait_until_ready(self, deadline: float, timeout: float) -> None:
        assert self._tree is not None and self._temp_dir is not None
        address_file = self._temp_dir / "ray_current_cluster"
        seen_autoscaler = False
        problem = "`ray start` has not finished"
        while time.monotonic() < deadline:
            if (code := self._tree.exit_code()) is not None:
                raise RuntimeError(
                    f"`ray start` ended with code {code}:\n{self._start_log()}\n{autoscaler_errors(self.log_dir)}"
                )
            if address_file.exists() and (address := address_file.read_text().strip()):
                try:
                    status = read_status(address, self._tree.processes(), self.log_dir, timeout_s=5)
                except Exception as error:  # Ray raises its own RPC errors, whose classes differ between versions
                    problem = f"the GCS at {address} does not answer: {error}"
                else:
                    head_is_there = any(node.is_head and node.alive for node in status.nodes)
                    if head_is_there and status.autoscaler_reported and status.autoscaler_running:
                        self._address = address
                        return
                    if seen_autoscaler and not status.autoscaler_running:
                        raise RuntimeError(f"Ray's autoscaler has died:\n{autoscaler_errors(self.log_dir)}")
                    seen_autoscaler = seen_autoscaler or status.autoscaler_running
                    problem = "the autoscaler has made no pass" if head_is_there else "the head node has not joined"
            time.sleep(0.1)
        raise TimeoutError(
            f"the cluster was not ready after {timeout:g} s: {problem}\n"
            f"{self._start_log()}\n{autoscaler_errors(self.log_dir)}"
        )

    def _start_log(self) -> str:
        assert self._temp_dir is not None
        path = self._temp_dir / "ray-start.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-25:]) if path.exists() else ""

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"waited {timeout:g} s in vain for {what}\n{self.status()}\n{autoscaler_errors(self.log_dir)}"
                )
            time.sleep(0.1)

    def _publish_address(self) -> None:
        from ray._private.services import find_gcs_addresses

        find_gcs_addresses.cache_clear()
        if not _active:
            _address_before[:] = [os.environ.get("RAY_ADDRESS")]
        _active.append(self.address)
        os.environ["RAY_ADDRESS"] = self.address

    def _withdraw_address(self) -> None:
        import ray
        from ray._private.services import find_gcs_addresses

        find_gcs_addresses.cache_clear()
        if self._address is None:
            return
        if ray.is_initialized() and ray.get_runtime_context().gcs_address == self._address:
            ray.shutdown()  # a driver whose raylet disappears is ended by Ray, the whole process with it
        if self._address in _active:
            _active.remove(self._address)
            before = _active[-1] if _active else _address_before[0]
            if before is None:
                os.environ.pop("RAY_ADDRESS", None)
            else:
                os.environ["RAY_ADDRESS"] = before


def _agreed_authentication() -> str | None:
    """The RAY_AUTH_MODE that cluster and driver both use; None when the user has chosen, or Ray knows of none.

    Since 2.60 `ray start` demands tokens when the user has one (any `ray.init()` that started a local Ray has made it),
    while a driver that is given an address sends none, and is turned away. Ray's own function decides, in this process
    first: it sets RAY_AUTH_MODE here as `ray.init("auto")` would.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return None
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:
        return None
    return "token" if maybe_enable_token_auth_if_token_available(warn_if_disabled=False) else "disabled"


def _make_temp_dir() -> Path:
    """A directory of our own whose path is short enough for Ray's sockets."""
    for parent in (os.environ.get("RAY_FAKE_CLUSTER_TMPDIR"), tempfile.gettempdir(), "/tmp"):
        if parent and len(os.path.join(parent, "fc-12345678")) <= LONGEST_TEMP_DIR and os.access(parent, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="fc-", dir=parent))
    raise ConfigError(
        "RAY_FAKE_CLUSTER_TMPDIR",
        f"Ray's sockets need a writable directory with a path of at most {LONGEST_TEMP_DIR - 12} bytes",
        os.environ.get("RAY_FAKE_CLUSTER_TMPDIR") or tempfile.gettempdir(),
        "e.g. /tmp",
    )
