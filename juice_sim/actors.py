"""Ray actors that carry the controller, the agents, and the loop that makes the agents follow the demand.

The classes are plain Python; `ray` is imported only where actors are made or called. All actors live in one Ray
namespace under fixed names, detached from the driver that made them:

    juice-controller             on the head node; restarts by itself, on the same port, with its state
    juice-scaling                on the head node; restarts by itself and adopts the agents that are there
    juice-agents-<type>-<hex>    on the fake node that carries their GPUs; one for each node
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .agent_process import Agent, AgentHost, AgentSpec
from .client import Client
from .core.settings import Settings
from .scaling import Growable
from .scaling_loop import NodeState, Scaler
from .server import ControllerServer, ServerError

log = logging.getLogger("juice_sim.actors")

CONTROLLER = "juice-controller"
SCALING = "juice-scaling"
AGENTS_PREFIX = "juice-agents-"
NAMESPACE = "juice"
ON_HEAD = {"node:__internal_head__": 0.001}
"""Every Ray head node has this resource, and no other node: such an actor never goes with a node that is given back."""

PORT_FILE = "port"
PORT_PATIENCE_S = 20.0


@dataclass(frozen=True)
class AgentNodeType:
    """A type of node and what its actor asks of Ray. `elastic` False: none is added or drained by the scaling loop."""

    kind: Growable
    num_gpus: float
    resources: Mapping[str, float] = field(default_factory=dict)
    elastic: bool = True


class ControllerActor:
    """A controller behind HTTP. When its process dies, Ray makes a new one, which continues where the log ends and
    listens on the same port again; agents and clients find it there."""

    def __init__(
        self, data_dir: str, listen: str = "127.0.0.1", auth: bool = True, settings: Settings | None = None, **more: Any
    ) -> None:
        self._data_dir = Path(data_dir)
        self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        port_file = self._data_dir / PORT_FILE
        port = int(port_file.read_text()) if port_file.exists() else 0
        deadline = time.monotonic() + PORT_PATIENCE_S
        while True:
            self._server = ControllerServer(
                self._data_dir, listen=listen, port=port, auth=auth, settings=settings, **more
            )
            try:
                self._server.start()
                break
            except ServerError:
                # The process before this one may not be quite gone yet.
                if not port or time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)
        new = port_file.with_suffix(".new")
        new.write_text(self._server.url.rpartition(":")[2])
        os.replace(new, port_file)
        self._started_at = time.time()

    def url(self) -> str:
        """Base URL; the same for the whole life of the data directory."""
        return self._server.url

    def admin_token_path(self) -> str | None:
        """File with an admin token, mode 0600; None without authentication."""
        path = self._server.running.admin_token_file
        return str(path) if path is not None else None

    def pid(self) -> int:
        """Process id of the controller, for tests that kill it."""
        return os.getpid()

    def stats(self) -> dict[str, Any]:
        """`pid`, `url`, `data_dir`, `started_at` (Unix time of this process's start)."""
        return {
            "pid": os.getpid(),
            "url": self._server.url,
            "data_dir": str(self._data_dir),
            "started_at": self._started_at,
        }

    def stop(self) -> None:
        """Finish what is pending and close the log. The actor is of no use afterwards."""
        self._server.stop()


class AgentsActor:
    """The agents of one node, in one process: one agent as on a real machine, or many. All methods are asynchronous.

    `token_file`: file with the token (None: no authentication); it is read again for each request, so that a token can
    be replaced.
    """

    def __init__(self, controller: str, token_file: str | None, type_name: str, specs: Sequence[AgentSpec]) -> None:
        self._controller = controller
        self._token_file = Path(token_file) if token_file else None
        self._type_name = type_name
        self._specs = list(specs)
        self._host: AgentHost | None = None
        self._agents: list[Agent] = []
        self._starting = asyncio.Lock()

    async def start(self) -> list[str]:
        """Register all agents; their ids. Once they are, it only answers."""
        async with self._starting:
            if self._host is None:
                shared = ("127.0.0.1", 0) if len(self._specs) > 1 else None
                self._host = await AgentHost(
                    self._controller, self._token if self._token_file else None, shared=shared
                ).start()
                self._agents = list(await asyncio.gather(*(self._host.add(spec) for spec in self._specs)))
        return [agent.id for agent in self._agents]

    async def view(self) -> dict[str, Any]:
        """`type`, `pid`, `node_id` (Ray's), and `agents`: id -> {address, sessions}."""
        return {
            "type": self._type_name,
            "pid": os.getpid(),
            "node_id": _node_id(),
            "agents": {
                agent.id: {"address": agent.address, "sessions": len(agent.core.sessions)} for agent in self._agents
            },
        }

    async def pid(self) -> int:
        """Process id."""
        return os.getpid()

    async def drain(self) -> None:
        """Take no further sessions."""
        for agent in self._agents:
            agent.drain()

    async def resume(self) -> None:
        """Take sessions again."""
        for agent in self._agents:
            agent.resume()

    async def kill_agent(self, agent_id: str) -> bool:
        """One agent crashes: connections break, the controller is not told. False when it is not here."""
        for agent in self._agents:
            if agent.id == agent_id:
                self._agents.remove(agent)
                await agent.abandon()
                return True
        return False

    async def stop(self) -> None:
        """All agents end their sessions and sign off."""
        if self._host is not None:
            await self._host.stop()
        self._agents = []

    def _token(self) -> str:
        assert self._token_file is not None
        return self._token_file.read_text("ascii").strip()


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


@dataclass
class _Node:
    key: str
    type_name: str
    actor: Any
    started: Any  # object ref of the answer to start()
    ready: bool = False
    seen: dict[str, Any] = field(default_factory=dict)


class RayNodes:
    """Launcher of nodes on Ray: each is an actor with the GPUs of its agents. While no node has room for it the actor
    pends, and that is what Ray's autoscaler starts a fake node for; when it is gone, the node goes by idle time-out."""

    def __init__(
        self, types: Sequence[AgentNodeType], controller: str, token_file: str | None, namespace: str = NAMESPACE
    ) -> None:
        self._types = {each.kind.name: each for each in types}
        self._controller = controller
        self._token_file = token_file
        self._namespace = namespace
        self._nodes: dict[str, _Node] = {}
        self._lock = threading.Lock()
        self._adopt()

    def nodes(self) -> list[NodeState]:
        """Asks every actor; those that have died are forgotten."""
        import ray

        with self._lock:
            nodes = list(self._nodes.values())
        answers = {}
        for node in nodes:
            if node.ready or ray.wait([node.started], timeout=0)[0]:
                answers[node.key] = node.actor.view.remote()
        if answers:
            ray.wait(list(answers.values()), num_returns=len(answers), timeout=2.0)
        states = []
        for node in nodes:
            try:
                if node.key in answers:
                    if not node.ready:
                        ray.get(node.started)
                        node.ready = True
                    node.seen = ray.get(answers[node.key], timeout=0)
            except ray.exceptions.GetTimeoutError:
                pass  # slow, or stopped by a SIGSTOP: what was seen last still holds
            except ray.exceptions.RayError as error:
                log.warning("%s is gone: %s", node.key, " ".join(str(error).split())[:300])
                self._forget(node)
                continue
            agents = {agent_id: each["sessions"] for agent_id, each in node.seen.get("agents", {}).items()}
            if node.ready and not agents:
                self._forget(node)  # all of its agents were killed
                continue
            states.append(NodeState(node.key, node.type_name, node.ready, agents))
        return states

    def launch(self, type_name: str) -> str:
        """Begin to start a node of that type."""
        import ray

        wanted = self._types[type_name]
        key = f"{AGENTS_PREFIX}{type_name}-{uuid.uuid4().hex[:8]}"
        actor = (
            ray.remote(AgentsActor)
            .options(
                name=key,
                namespace=self._namespace,
                lifetime="detached",
                num_cpus=0,
                num_gpus=wanted.num_gpus,
                resources=dict(wanted.resources),
                max_restarts=0,
            )
            .remote(self._controller, self._token_file, type_name, _specs(wanted.kind, key))
        )
        with self._lock:
            self._nodes[key] = _Node(key, type_name, actor, actor.start.remote())
        return key

    def drain(self, key: str) -> None:
        """See `Launcher`."""
        if node := self._nodes.get(key):
            node.actor.drain.remote()

    def resume(self, key: str) -> None:
        """See `Launcher`."""
        if node := self._nodes.get(key):
            node.actor.resume.remote()

    def close(self, key: str, timeout_s: float = 10.0) -> None:
        """Sign off, then end the actor. One that does not answer in time is ended all the same."""
        import ray

        node = self._nodes.get(key)
        if node is None:
            return
        with contextlib.suppress(ray.exceptions.RayError):  # GetTimeoutError among them
            if node.ready:
                ray.get(node.actor.stop.remote(), timeout=timeout_s)
        self._forget(node)

    def actor_of(self, agent_id: str) -> tuple[str, Any, dict[str, Any]]:
        """(key, actor, its last view) of the node that carries the agent. KeyError when none does."""
        for node in list(self._nodes.values()):
            if agent_id in node.seen.get("agents", {}):
                return node.key, node.actor, node.seen
        raise KeyError(f"no agent {agent_id} on this cluster")

    def views(self) -> dict[str, dict[str, Any]]:
        """What each node said last, by key."""
        return {node.key: dict(node.seen) for node in list(self._nodes.values())}

    def _forget(self, node: _Node) -> None:
        import ray

        with self._lock:
            self._nodes.pop(node.key, None)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(node.actor, no_restart=True)

    def _adopt(self) -> None:
        """Take over the actors that an earlier incarnation of this loop has started."""
        import ray

        for named in ray.util.list_named_actors(all_namespaces=True):
            key = named["name"]
            type_name = key.removeprefix(AGENTS_PREFIX).rpartition("-")[0]
            if named["namespace"] == self._namespace and key.startswith(AGENTS_PREFIX) and type_name in self._types:
                actor = ray.get_actor(key, namespace=self._namespace)
                self._nodes[key] = _Node(key, type_name, actor, actor.start.remote())


def _specs(kind: Growable, key: str) -> list[AgentSpec]:
    """The agents of one node: each with GPUs of its own, told apart by uuid."""
    return [
        AgentSpec(
            pool_id=kind.pool_id,
            gpus=tuple(
                replace(gpu, uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{key}/{at}/{gpu.index}')}")
                for gpu in kind.gpus
            ),
            labels=dict(kind.labels),
            taints=dict(kind.taints),
            hostname=key.removeprefix("juice-") if kind.agents_per_node == 1 else f"{key.removeprefix('juice-')}-{at}",
        )
        for at in range(kind.agents_per_node)
    ]


class ScalingActor:
    """Runs the scaling loop in a thread. `initial`: nodes of each type to start with, unless agents are there already.

    `token_file`: admin token, for declaring node types and seeing all sessions; `agents_token_file`: for the agents.
    """

    def __init__(
        self,
        controller: str,
        token_file: str | None,
        agents_token_file: str | None,
        types: Sequence[AgentNodeType],
        initial: Mapping[str, int],
        namespace: str = NAMESPACE,
        idle_after_s: float = 30.0,
        patience_s: float = 1.0,
    ) -> None:
        token = Path(token_file).read_text("ascii").strip() if token_file else None
        self._nodes = RayNodes(types, controller, agents_token_file, namespace)
        self._scaler = Scaler(
            Client(controller, token),
            [each.kind for each in types if each.elastic],
            self._nodes,
            idle_after_s=idle_after_s,
            patience_s=patience_s,
        )
        if not self._nodes.views():
            for type_name, count in initial.items():
                for _ in range(count):
                    self._nodes.launch(type_name)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scaler.run, args=(self._stop,), name="juice scaling", daemon=True)
        self._thread.start()

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes: `key`, `type`, `ready`, `draining`, `agents` (id -> sessions), `pid`, `node_id`."""
        views = self._nodes.views()
        return [
            {
                "key": node.key,
                "type": node.type_name,
                "ready": node.ready,
                "draining": node.key in self._scaler.draining(),
                "agents": dict(node.agents),
                "pid": views.get(node.key, {}).get("pid"),
                "node_id": views.get(node.key, {}).get("node_id", ""),
            }
            for node in self._nodes.nodes()
        ]

    def launch(self, type_name: str, count: int = 1) -> list[str]:
        """Start nodes now, whatever the demand; their keys."""
        return [self._nodes.launch(type_name) for _ in range(count)]

    def kill_agent(self, agent_id: str) -> None:
        """The agent crashes. KeyError when there is none of that id."""
        import ray

        self._nodes.nodes()  # what was seen last may be from before another kill
        _, actor, view = self._nodes.actor_of(agent_id)
        if len(view["agents"]) == 1:
            ray.kill(actor, no_restart=True)
        elif not ray.get(actor.kill_agent.remote(agent_id)):
            raise KeyError(f"no agent {agent_id} on this cluster")

    def stop(self) -> None:
        """End the loop and all agents; the agents sign off."""
        self._stop.set()
        self._thread.join(timeout=30)
        closing = [threading.Thread(target=self._nodes.close, args=(key,), daemon=True) for key in self._nodes.views()]
        for each in closing:
            each.start()
        for each in closing:
            each.join(timeout=30)
