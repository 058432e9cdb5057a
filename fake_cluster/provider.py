"""The node provider of the fake clusters: Ray's own FakeMultiNodeProvider without its defects.

Runs inside the autoscaler's monitor process, v1 and v2 alike, by `provider: {type: external, module:
fake_cluster.provider.FakeNodeProvider}`. What it does differently:

- Workers join the GCS that the monitor itself serves; `gcs_address` need not be known when the file is written.
- `max_workers`, of the cluster and of each node type, is never exceeded: counted here, under the lock, at the moment
  of the launch. (The v1 autoscaler reads its two counters one after the other and can ask for one node too many.)
- Nodes start and stop in parallel, without blocking the autoscaler's loop.
- A node whose raylet has died is gone; Ray's class goes on listing it.
- Nodes are lean (see `lean_node`) and end with the monitor, however that ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray._private.node
import ray._private.parameter
import yaml
from ray._private import ray_constants
from ray._private.services import get_node_ip_address
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_WORKER,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from fake_cluster.lean_node import full_nodes_wanted, start_lean_raylets

logger = logging.getLogger(__name__)

DEFAULT_GCS_PORT = 6379


class TooManyNodes(Exception):
    """The autoscaler asked for more nodes than its own configuration allows; it will ask again."""


def monitor_argument(flag: str, argv: Sequence[str]) -> str:
    """The value of `--flag=value` or `--flag value` on the monitor's command line, "" when it is not there."""
    for position, word in enumerate(argv):
        if word == flag and position + 1 < len(argv):
            return argv[position + 1]
        if word.startswith(flag + "="):
            return word[len(flag) + 1 :]
    return ""


class Limits:
    """`max_workers` as the configuration file says now: it may be edited while the cluster runs."""

    def __init__(self, config_file: str) -> None:
        self._path = Path(os.path.expanduser(config_file)) if config_file else None
        self._version: tuple[int, int] | None = None
        self._config: dict[str, Any] = {}

    def config(self) -> dict[str, Any]:
        """The file's content; the last good one while somebody is half-way through an edit."""
        if self._path is None:
            return {}
        try:
            stat = self._path.stat()
            if (version := (stat.st_mtime_ns, stat.st_size)) != self._version:
                parsed = yaml.safe_load(self._path.read_text())
                if isinstance(parsed, dict):
                    self._config, self._version = parsed, version
        except (OSError, yaml.YAMLError) as error:
            logger.warning("Keeping the limits read before: %s cannot be read now: %s", self._path, error)
        return self._config

    def room_for(self, node_type: str, present: Mapping[str, int]) -> int | None:
        """How many more nodes of this type may start next to those `present` (type -> count); None: no limit known."""
        config = self.config()
        rooms = []
        if isinstance(total := config.get("max_workers"), int):
            rooms.append(total - sum(present.values()))
        of_type = config.get("available_node_types", {}).get(node_type, {}).get("max_workers")
        if isinstance(of_type, int):
            rooms.append(of_type - present.get(node_type, 0))
        return max(0, min(rooms)) if rooms else None


class _FakeNode(ray._private.node.Node):
    """A node whose sockets and logs carry its number. Ray takes the first name that is free, without reserving it, so
    that two nodes which start at the same time get the same socket."""

    def _make_inc_temp(self, suffix: str = "", prefix: str = "", directory_name: str | None = None) -> str:
        own = os.path.join(directory_name or self.temp_dir, f"{prefix}.{int(self._node_id[-5:])}{suffix}")
        return super()._make_inc_temp(suffix, prefix, directory_name) if os.path.exists(own) else own


class FakeNodeProvider(FakeMultiNodeProvider):
    """Fake nodes as processes of this machine. Keys of `provider` in the configuration, all optional: `gcs_address`,
    `head_node_id`, `start_in_parallel` (how many nodes at a time; default: the number of CPUs, at least 2)."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._gcs_address = (
            provider_config.get("gcs_address")
            or monitor_argument("--gcs-address", sys.argv)
            or f"{get_node_ip_address()}:{DEFAULT_GCS_PORT}"
        )
        # Meant for the head; here it would put the head's node group on the labels of all nodes.
        os.environ.pop("RAY_NODE_TYPE_NAME", None)
        self._limits = Limits(monitor_argument("--autoscaling-config", sys.argv))
        head_type = self._limits.config().get("head_node_type")
        if head_type:
            self._nodes[self._head_node_id]["tags"][TAG_RAY_USER_NODE_TYPE] = head_type
        # Tags outlive their node: the autoscaler asks for those of nodes that it saw a moment ago.
        self._tags = {self._head_node_id: self._nodes[self._head_node_id]["tags"]}
        self._stopping: dict[str, str] = {}  # node id -> node type, until its processes are gone
        parallel = int(provider_config.get("start_in_parallel") or max(2, os.cpu_count() or 1))
        # The threads live as long as the monitor: a raylet gets PR_SET_PDEATHSIG, and to the kernel the parent that
        # dies is the *thread* that forked.
        self._pool = ThreadPoolExecutor(max_workers=parallel, thread_name_prefix="fake-node")
        start_lean_raylets()

    # --- what the autoscaler asks ---

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        self._forget_dead_nodes()
        found: list[str] = super().non_terminated_nodes(tag_filters)
        return found

    def node_tags(self, node_id: str) -> dict[str, str]:
        with self.lock:
            return dict(self._tags[node_id])

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> dict[str, Any]:
        """Start `count` nodes in parallel and return when all have joined. Raises TooManyNodes when the configuration
        allows fewer (those are started nevertheless), or what starting one of them raised."""
        if self._creation_error:
            raise self._creation_error
        node_ids = self._reserve(tags, count)
        starts = {
            node_id: self._pool.submit(
                self._start, node_id, tags[TAG_RAY_USER_NODE_TYPE], dict(resources), dict(labels)
            )
            for node_id in node_ids
        }
        failures = {node_id: error for node_id, start in starts.items() if (error := start.exception()) is not None}
        for node_id, error in failures.items():
            logger.error("Node %s could not be started: %s", node_id, error)
        if failures:
            raise next(iter(failures.values()))
        if len(node_ids) < count:
            raise TooManyNodes(
                f"{count} nodes of type {tags[TAG_RAY_USER_NODE_TYPE]} wanted, max_workers allows {len(node_ids)} now"
            )
        return {node_id: {} for node_id in node_ids}

    def terminate_node(self, node_id: str) -> None:
        self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: list[str]) -> None:
        if self._termination_errors:
            raise self._termination_errors
        with self.lock:
            nodes = {node_id: self._nodes.pop(node_id) for node_id in node_ids if node_id in self._nodes}
            for node_id in nodes:
                self._stopping[node_id] = self._tags[node_id][TAG_RAY_USER_NODE_TYPE]
        stops = [self._pool.submit(self._stop, node_id, node.get("node")) for node_id, node in nodes.items()]
        for stop in stops:
            stop.result()

    # --- nodes ---

    def _reserve(self, tags: dict[str, str], count: int) -> list[str]:
        """Ids for as many of `count` nodes as max_workers allows; they count from now on."""
        node_type = tags[TAG_RAY_USER_NODE_TYPE]
        with self.lock:
            present: dict[str, int] = {}
            types = [
                self._tags[node_id][TAG_RAY_USER_NODE_TYPE] for node_id in self._nodes if node_id != self._head_node_id
            ]
            for each in [*types, *self._stopping.values()]:
                present[each] = present.get(each, 0) + 1
            room = self._limits.room_for(node_type, present)
            if room is not None and room < count:
                logger.info("Starting %d of %d nodes of type %s: max_workers", room, count, node_type)
                count = room
            node_ids = []
            for _ in range(count):
                node_id = self._next_hex_node_id()
                self._tags[node_id] = {
                    TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
                    TAG_RAY_USER_NODE_TYPE: node_type,
                    TAG_RAY_NODE_NAME: node_id,
                    TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
                    **tags,
                }
                self._nodes[node_id] = {"tags": self._tags[node_id]}
                node_ids.append(node_id)
            return node_ids

    def _start(self, node_id: str, node_type: str, resources: dict[str, float], labels: dict[str, str]) -> None:
        # Made in two steps, so that what a failing start leaves behind can be stopped.
        node = _FakeNode.__new__(_FakeNode)
        try:
            node.__init__(self._parameters(node_id, node_type, resources, labels), head=False, shutdown_at_exit=False)
        except BaseException:
            with self.lock:
                self._nodes.pop(node_id, None)
            if hasattr(node, "all_processes"):
                node.kill_all_processes(check_alive=False)
            raise
        with self.lock:
            if node_id in self._nodes:
                self._nodes[node_id]["node"] = node
                # Set by the launcher for nodes that still have to be set up by ssh; this one is ready.
                self._tags[node_id][TAG_RAY_NODE_STATUS] = STATUS_UP_TO_DATE
                return
        node.kill_all_processes(check_alive=False)  # terminated while it was starting

    def _parameters(
        self, node_id: str, node_type: str, resources: dict[str, float], labels: dict[str, str]
    ) -> ray._private.parameter.RayParams:
        labels = {"ray.io/node-group": node_type, **labels}
        cpus, gpus = resources.pop("CPU", 0), resources.pop("GPU", 0)
        memory, store = resources.pop("memory", None), resources.pop("object_store_memory", None)
        return ray._private.parameter.RayParams(
            min_worker_port=0,
            max_worker_port=0,
            dashboard_port=None,
            dashboard_agent_listen_port=0,
            # All nodes of this machine write into one directory of logs, which the head's log monitor reads.
            include_log_monitor=full_nodes_wanted(),
            num_cpus=cpus,
            num_gpus=gpus,
            memory=memory,
            object_store_memory=store,
            resources=resources,
            labels=labels,
            redis_address=self._gcs_address,
            gcs_address=self._gcs_address,
            env_vars={
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_id,
                "RAY_CLOUD_INSTANCE_ID": node_id,
                "RAY_NODE_TYPE_NAME": node_type,
                ray_constants.RESOURCES_ENVIRONMENT_VARIABLE: json.dumps(resources),
                ray_constants.LABELS_ENVIRONMENT_VARIABLE: json.dumps(labels),
            },
        )

    def _stop(self, node_id: str, node: Any) -> None:
        try:
            if node is not None:
                node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        finally:
            with self.lock:
                self._stopping.pop(node_id, None)

    def _forget_dead_nodes(self) -> None:
        """Take nodes off the list whose raylet has ended by itself."""
        with self.lock:
            dead = [
                node_id
                for node_id, entry in self._nodes.items()
                if (node := entry.get("node")) is not None
                and all(info.process.poll() is not None for info in node.all_processes.get("raylet", ()))
            ]
            entries = {node_id: self._nodes.pop(node_id) for node_id in dead}
        for node_id, entry in entries.items():
            logger.warning("The raylet of node %s (%s) has died", node_id, self._tags[node_id][TAG_RAY_USER_NODE_TYPE])
            entry["node"].kill_all_processes(check_alive=False)
