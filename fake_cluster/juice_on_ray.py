"""Juice on a Ray cluster, in one call: a controller on the head node, agents on the fake nodes of their pools."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from juice_sim.actors import CONTROLLER, NAMESPACE, ON_HEAD, SCALING, AgentNodeType, ControllerActor, ScalingActor
from juice_sim.client import ApiError, Client
from juice_sim.core.settings import Settings
from juice_sim.gpu_profiles import make_gpus
from juice_sim.scaling import Growable

from .autoscaling import AutoscalingCluster
from .node_types import GpuPool

AGENTS_TOKEN_FILE = "agents.token"


@dataclass(frozen=True)
class AgentOnRay:
    """One agent: its id at the controller, pool (name), the actor (`key`) and process that carry it, the Ray node that
    this is on, and the number of its open sessions."""

    id: str
    pool: str
    key: str
    pid: int
    node_id: str
    sessions: int
    draining: bool


class JuiceOnRay:
    """What `start_juice` has started. Leaving it (or `stop()`) ends the actors; the Ray cluster goes on."""

    def __init__(
        self, controller: Any, scaling: Any, url: str, token: str | None, pools: Mapping[str, GpuPool], ids: Any
    ) -> None:
        self._controller = controller
        self._scaling = scaling
        self.url = url
        self.token = token
        self.pool_ids: Mapping[str, str] = dict(ids)
        self._pools = {pool.node_type: pool for pool in pools.values()}
        self._stopped = False

    def client(self) -> Client:
        """A client of the controller, as its admin."""
        return Client(self.url, self.token)

    # --- the controller ---

    @property
    def controller_pid(self) -> int:
        """Process id of the controller now; waits while Ray restarts it."""
        import ray

        pid: int = ray.get(self._controller.pid.remote(), timeout=120)
        return pid

    def kill_controller(self, sig: int = signal.SIGKILL, *, wait_s: float = 60.0) -> int:
        """Send the controller's process a signal; after a deadly one, wait until the next process serves. Returns the
        pid that got the signal. (SIGSTOP and SIGCONT make it hang and go on.)"""
        pid = self.controller_pid
        os.kill(pid, sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            self._until(lambda: not _runs(pid), wait_s, "the end of the controller's process")
            self._until(self._serves, wait_s, "the controller to come back")
        return pid

    def _serves(self) -> bool:
        with Client(self.url, self.token, tries=1, timeout_s=5) as client:
            try:
                client.send("GET", "/health")
            except ApiError:
                return False
            return True

    # --- the agents ---

    def agents(self) -> list[AgentOnRay]:
        """The agents that are registered now."""
        return [
            AgentOnRay(
                agent_id,
                self._pools[node["type"]].name,
                node["key"],
                node["pid"],
                node["node_id"],
                sessions,
                node["draining"],
            )
            for node in self.nodes()
            for agent_id, sessions in node["agents"].items()
        ]

    def nodes(self) -> list[dict[str, Any]]:
        """The actors that carry agents, pending ones included; see `ScalingActor.nodes`."""
        import ray

        nodes: list[dict[str, Any]] = ray.get(self._scaling.nodes.remote(), timeout=120)
        return nodes

    def agent(self, agent_id: str) -> AgentOnRay:
        """One agent. KeyError when there is none of that id."""
        for agent in self.agents():
            if agent.id == agent_id:
                return agent
        raise KeyError(f"no agent {agent_id} on this cluster")

    def kill_agent(self, agent_id: str) -> None:
        """The agent crashes: the controller is not told, connections break. KeyError when there is no such agent."""
        import ray

        try:
            ray.get(self._scaling.kill_agent.remote(agent_id), timeout=60)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, KeyError):
                raise KeyError(f"no agent {agent_id} on this cluster") from None
            raise

    def pause_agent(self, agent_id: str) -> int:
        """The agent hangs (SIGSTOP) until `resume_agent`; the other agents of its process with it. Returns the pid."""
        pid = self.agent(agent_id).pid
        os.kill(pid, signal.SIGSTOP)
        return pid

    def resume_agent(self, agent_id: str) -> int:
        """A paused agent goes on."""
        pid = self.agent(agent_id).pid
        os.kill(pid, signal.SIGCONT)
        return pid

    def add_nodes(self, pool: str, count: int = 1) -> list[str]:
        """Start more agents of a pool now, whatever the demand; the keys of their actors. Ray's max_workers holds."""
        import ray

        node_type = next(name for name, each in self._pools.items() if each.name == pool)
        keys: list[str] = ray.get(self._scaling.launch.remote(node_type, count), timeout=60)
        return keys

    def wait_for_agents(self, count: int, timeout_s: float = 120.0, *, pool: str | None = None) -> list[AgentOnRay]:
        """Wait until exactly `count` agents (of one pool, or of all) are registered. TimeoutError says how many are."""
        found: list[AgentOnRay] = []

        def enough() -> bool:
            found[:] = [agent for agent in self.agents() if pool in (None, agent.pool)]
            return len(found) == count

        self._until(enough, timeout_s, lambda: f"{count} agents; there are {len(found)}")
        return found

    # --- the end ---

    def stop(self) -> None:
        """Agents sign off, the controller closes its log, all actors end. Twice is fine."""
        import ray

        if self._stopped:
            return
        self._stopped = True
        for actor in (self._scaling, self._controller):
            try:
                ray.get(actor.stop.remote(), timeout=60)
            except ray.exceptions.RayError:
                pass  # it is dead, or will not answer: it is ended either way
            finally:
                ray.kill(actor, no_restart=True)

    def __enter__(self) -> JuiceOnRay:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @staticmethod
    def _until(condition: Callable[[], bool], timeout_s: float, what: str | Callable[[], str]) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"waited {timeout_s:g} s in vain for {what() if callable(what) else what}")
            time.sleep(0.1)


def start_juice(
    pools: Sequence[GpuPool],
    *,
    data_dir: Path,
    cluster: AutoscalingCluster | None = None,
    namespace: str = NAMESPACE,
    auth: bool = True,
    settings: Settings | None = None,
    idle_after_s: float = 30.0,
    patience_s: float = 1.0,
    timeout_s: float = 180.0,
    **controller_options: Any,
) -> JuiceOnRay:
    """Start a controller and the agents of these pools, and return when all of them are registered.

    On `cluster`, or on the one that this process is connected to; its node types are those of `gpu_node_types(pools)`.
    `data_dir` holds the controller's log and tokens, and must be a directory of this machine. Pools with `max_agents`
    grow and shrink with the demand: agents idle for `idle_after_s` go, sessions that have waited for `patience_s` bring
    up new ones. `controller_options` are further arguments of `ControllerServer`. One Juice per `namespace`.
    """
    import ray

    if cluster is not None and not ray.is_initialized():
        ray.init(cluster.address, log_to_driver=False)
    if not ray.is_initialized():
        raise RuntimeError("start_juice needs a Ray cluster: give cluster=, or call ray.init(address) first")
    on_head = {
        "namespace": namespace,
        "lifetime": "detached",
        "num_cpus": 0,
        "resources": ON_HEAD,
        "max_restarts": -1,
        "max_task_retries": -1,
    }
    controller = (
        ray.remote(ControllerActor)
        .options(name=CONTROLLER, **on_head)
        .remote(str(data_dir), auth=auth, settings=settings, **controller_options)
    )
    scaling = None
    try:
        url = ray.get(controller.url.remote(), timeout=timeout_s)
        token_file = ray.get(controller.admin_token_path.remote(), timeout=timeout_s)
        token = Path(token_file).read_text("ascii").strip() if token_file else None
        with Client(url, token) as client:
            ids = {pool.name: client.find_or_create_pool(pool.name)[0] for pool in pools}
            agents_token_file = str(_agents_token(client, data_dir, ids)) if token else None
        scaling = (
            ray.remote(ScalingActor)
            .options(name=SCALING, **on_head)
            .remote(
                url,
                token_file,
                agents_token_file,
                [_agent_node_type(pool, ids[pool.name]) for pool in pools],
                {pool.node_type: pool.nodes_for(pool.agents) for pool in pools},
                namespace,
                idle_after_s,
                patience_s,
            )
        )
        juice = JuiceOnRay(controller, scaling, url, token, {pool.name: pool for pool in pools}, ids)
        juice.wait_for_agents(sum(pool.nodes_for(pool.agents) * pool.agents_per_node for pool in pools), timeout_s)
    except BaseException:
        for actor in (scaling, controller):
            if actor is not None:
                ray.kill(actor, no_restart=True)
        raise
    return juice


def _agent_node_type(pool: GpuPool, pool_id: str) -> AgentNodeType:
    kind = Growable(
        pool.node_type,
        pool_id,
        make_gpus(pool.model, pool.gpus, vram=pool.vram, identity=pool.node_type),
        labels=dict(pool.labels),
        taints=dict(pool.taints),
        agents_per_node=pool.agents_per_node,
        min_nodes=pool.nodes_for(pool.min_agents),
        max_nodes=pool.nodes_for(pool.may_grow_to),
    )
    return AgentNodeType(
        kind,
        num_gpus=pool.gpus * pool.agents_per_node,
        resources={pool.pool_resource: pool.agents_per_node},
        elastic=pool.max_agents is not None,
    )


def _agents_token(client: Client, data_dir: Path, ids: Mapping[str, str]) -> Path:
    """A token that can register agents in these pools and nothing else, in a file that only this user can read."""
    new = client.create_token(
        "agents on Ray",
        expire_days=365,
        permissions=[("register_agent", pool_id) for pool_id in ids.values()],
    )
    path = data_dir / AGENTS_TOKEN_FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(new.token + "\n")
    return path


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
