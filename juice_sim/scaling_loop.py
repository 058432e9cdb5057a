"""Carries out what `scaling.plan` decides: watches the queue, starts nodes, drains those that are idle.

Where nodes come from is the launcher's business (`actors.RayNodes`: an actor that pends until Ray's autoscaler has
brought up a fake node for it). Everything else goes through the controller's REST API, so that this works beside any
controller that has it. A controller that is away for a while changes nothing; the next step looks again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from . import wire_types as w
from .agent_wire import gpu_object
from .client import ApiError, Client
from .core import codec
from .core.model import Requirements
from .scaling import Growable, NodeView, Phase, Plan, Waiting, plan

log = logging.getLogger("juice_sim.scaling")

MOST_CONSIDERED = 500  # queued sessions looked at in one step; far more than could lead to different nodes


@dataclass(frozen=True)
class NodeState:
    """One node as its launcher sees it. `agents`: id -> number of open sessions; empty while it starts."""

    key: str
    type_name: str
    ready: bool
    agents: Mapping[str, int] = field(default_factory=dict)


class Launcher(Protocol):
    """Starts and stops nodes with their agents. A node that died by itself is no longer among `nodes()`."""

    def nodes(self) -> Sequence[NodeState]:
        """The nodes that are there or starting now."""

    def launch(self, type_name: str) -> str:
        """Begin to start a node and return its key at once."""

    def drain(self, key: str) -> None:
        """Let its agents take no further sessions."""

    def resume(self, key: str) -> None:
        """Let its agents take sessions again."""

    def close(self, key: str) -> None:
        """Let its agents sign off, and give the node back."""


class Scaler:
    """One set of nodes that follows the demand. `step()` once, or `run(stop)` until told otherwise."""

    def __init__(
        self,
        client: Client,
        types: Iterable[Growable],
        launcher: Launcher,
        *,
        idle_after_s: float = 30.0,
        patience_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._types = tuple(types)
        self._launcher = launcher
        self._idle_after_s = idle_after_s
        self._patience_s = patience_s
        self._clock = clock
        self._queued: dict[str, Waiting] = {}
        self._idle_since: dict[str, float] = {}
        self._draining: set[str] = set()
        self._declared = False

    def step(self) -> Plan:
        """Look once and act on it. Raises ApiError when the controller does not answer."""
        if not self._declared:
            self.declare()
        now = self._clock()
        waiting = self._waiting(now)
        nodes = self._launcher.nodes()
        views = [self._view(node, now) for node in nodes]
        decided = plan(waiting, self._types, views, now, patience_s=self._patience_s, idle_after_s=self._idle_after_s)
        for type_name, count in decided.add.items():
            log.info("starting %d of %s for %d queued sessions", count, type_name, len(waiting))
            for _ in range(count):
                self._launcher.launch(type_name)
        for key in decided.resume:
            log.info("%s stays", key)
            self._launcher.resume(key)
            self._draining.discard(key)
        for key in decided.drain:
            log.info("draining %s", key)
            self._launcher.drain(key)
            self._draining.add(key)
        for node in nodes:
            if node.key in self._draining and node.key not in decided.drain and self._is_empty(node):
                log.info("giving back %s", node.key)
                self._launcher.close(node.key)
                self._draining.discard(node.key)
        gone = self._idle_since.keys() - {node.key for node in nodes}
        for key in gone:
            del self._idle_since[key]
        self._draining &= {node.key for node in nodes}
        return decided

    def run(self, stop: threading.Event, interval_s: float = 0.5) -> None:
        """Step until `stop` is set."""
        complained = ""
        while not stop.is_set():
            begun = time.monotonic()
            try:
                self.step()
                complained = ""
            except ApiError as error:
                if str(error) != complained:
                    log.warning("the controller does not answer, trying again: %s", error)
                complained = str(error)
            except Exception:  # Ray has dozens of them; the loop has to outlive each, and the next step looks anew
                log.exception("a step of the scaling loop failed")
            # A long queue takes long to read: leave most of the time to others.
            stop.wait(max(interval_s, 3 * (time.monotonic() - begun)))

    def declare(self) -> None:
        """Tell the controller what may still be started."""
        self._client.declare_node_types(_as_wire(kind) for kind in self._types)
        self._declared = True

    def draining(self) -> frozenset[str]:
        """Keys of the nodes that are being drained."""
        return frozenset(self._draining)

    def counts(self) -> Mapping[str, int]:
        """Nodes by type, starting and draining ones included."""
        return Counter(node.type_name for node in self._launcher.nodes())

    def _waiting(self, now: float) -> list[Waiting]:
        queued = {session.id for session in self._client.sessions(state="queued")[:MOST_CONSIDERED]}
        for session_id in self._queued.keys() - queued:
            del self._queued[session_id]
        for session_id in queued - self._queued.keys():
            requirements = self._requirements(session_id)
            if requirements is not None:
                self._queued[session_id] = Waiting(session_id, requirements, now)
        return list(self._queued.values())

    def _requirements(self, session_id: str) -> Requirements | None:
        """What a session asked for: its story begins with that."""
        with contextlib.suppress(ApiError):
            for told in self._client.story(session_id):
                if "requirements" in told:
                    return codec.decode_requirements(told["requirements"])
        return None

    def _view(self, node: NodeState, now: float) -> NodeView:
        if not node.ready:
            return NodeView(node.key, node.type_name, Phase.STARTING)
        if any(node.agents.values()):
            self._idle_since.pop(node.key, None)
        else:
            self._idle_since.setdefault(node.key, now)
        phase = Phase.DRAINING if node.key in self._draining else Phase.SERVING
        return NodeView(node.key, node.type_name, phase, self._idle_since.get(node.key))

    def _is_empty(self, node: NodeState) -> bool:
        """The controller knows that the agents take nothing more, and none of them has anything left."""
        for agent_id in node.agents:
            try:
                agent = self._client.agent(agent_id)
            except ApiError as error:
                if error.status == 404:
                    continue  # removed already
                raise
            if agent.state == "active" or agent.sessions:
                return False
        return True


def _as_wire(kind: Growable) -> w.NodeType:
    node = kind.as_node_type()
    return w.NodeType(
        name=node.name,
        pool_id=node.pool_id,
        gpus=[gpu_object(gpu) for gpu in node.gpus],
        labels=node.labels,
        taints=node.taints,
        max_workers=node.max_workers,
    )
