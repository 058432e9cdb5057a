"""The scaling loop against a real controller and real agents, without Ray: nodes are threads here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from juice_sim.agent_process import AgentHost, AgentSpec
from juice_sim.client import Client
from juice_sim.gpu_profiles import make_gpus
from juice_sim.scaling import Growable
from juice_sim.scaling_loop import NodeState, Scaler
from juice_sim.server import ControllerServer

from .conftest import until


class LocalNodes:
    """Launches agents in an event loop in a thread of this process."""

    def __init__(self, controller: str, types: list[Growable]) -> None:
        self._controller = controller
        self._types = {kind.name: kind for kind in types}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._numbers = count(1)
        self._hosts: dict[str, tuple[str, AgentHost]] = {}

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def nodes(self) -> list[NodeState]:
        async def look() -> list[NodeState]:
            return [
                NodeState(key, name, True, {agent.id: len(agent.core.sessions) for agent in host.agents})
                for key, (name, host) in self._hosts.items()
            ]

        found: list[NodeState] = self._call(look())
        return found

    def launch(self, type_name: str) -> str:
        kind, key = self._types[type_name], f"{type_name}-{next(self._numbers)}"

        async def start() -> None:
            host = await AgentHost(self._controller).start()
            for _ in range(kind.agents_per_node):
                await host.add(AgentSpec(kind.pool_id, make_gpus("A10", len(kind.gpus)), kind.labels))
            self._hosts[key] = type_name, host

        self._call(start())
        return key

    def _each(self, key: str, method: str) -> None:
        async def tell() -> None:
            for agent in self._hosts[key][1].agents:
                getattr(agent, method)()

        self._call(tell())

    def drain(self, key: str) -> None:
        self._each(key, "drain")

    def resume(self, key: str) -> None:
        self._each(key, "resume")

    def close(self, key: str) -> None:
        self._call(self._hosts.pop(key)[1].stop())

    def crash(self, key: str) -> None:
        self._call(self._hosts.pop(key)[1].abandon())

    def stop(self) -> None:
        for key in list(self._hosts):
            self.close(key)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class World:
    """One controller, one pool, nodes of one A10 that may be 0 to 2, and a clock that stands still."""

    def __init__(self, url: str) -> None:
        self.client = Client(url)
        self.pool = self.client.create_pool("test").id
        self.kind = Growable("small", self.pool, make_gpus("A10", 1), labels={"zone": "a"}, max_nodes=2)
        self.nodes = LocalNodes(url, [self.kind])
        self.now = 0.0
        self.scaler = Scaler(self.client, [self.kind], self.nodes, idle_after_s=10.0, clock=lambda: self.now)

    def step(self, after: float = 0.0) -> Any:
        self.now += after
        return self.scaler.step()

    def request(self, **more: Any) -> str:
        return self.client.request_session(self.pool, **more)


@pytest.fixture
def world() -> Iterator[World]:
    with ControllerServer(auth=False) as server:
        made = World(server.url)
        try:
            yield made
        finally:
            made.nodes.stop()
            made.client.close()


def test_a_queued_session_brings_a_node_and_idleness_takes_it_away(world: World) -> None:
    assert not world.step()
    session = world.request()
    assert not world.step()
    assert world.step(after=2.0).add == {"small": 1}
    assert world.client.wait_for_session(session).state == "active"
    assert not world.step(after=60.0)  # in use, however long
    world.client.release_session(session)
    until(lambda: not any(world.nodes.nodes()[0].agents.values()), "the end of the session")
    assert not world.step()
    assert world.step(after=11.0).drain == ("small-1",)
    until(lambda: (world.step(), not world.nodes.nodes())[1], "the node to be given back")
    assert world.client.agents(everything=True) == []


def test_nothing_is_added_beyond_the_limit_or_for_what_cannot_be_served(world: World) -> None:
    for _ in range(5):
        world.request()
    hopeless = world.request(gpus=2)
    world.step()
    decided = world.step(after=2.0)
    assert (decided.add, decided.hopeless) == ({"small": 2}, (hopeless,))
    assert not world.step(after=2.0).add
    assert world.scaler.counts() == {"small": 2}


def test_a_draining_node_takes_sessions_again_when_they_come(world: World) -> None:
    world.nodes.launch("small")
    world.step()
    assert world.step(after=11.0).drain == ("small-1",)
    until(lambda: world.client.agents() == [], "the agent to be disabled")
    session = world.request()
    world.scaler._waiting(world.now)  # seen before the node is given back
    assert world.step(after=2.0).resume == ("small-1",)
    assert world.client.wait_for_session(session).state == "active"
    assert world.scaler.draining() == frozenset()


def test_a_node_that_crashed_is_replaced_when_somebody_waits(world: World) -> None:
    key = world.nodes.launch("small")
    world.step()
    world.nodes.crash(key)
    assert not world.step(after=30.0)
    session = world.request()  # is given to the agent that is not known to be dead yet
    second = world.request()
    world.step()
    assert world.step(after=2.0).add == {"small": 1}
    assert world.client.wait_for_session(second).state == "active"
    assert world.client.session(session).state == "assigned"


def test_the_controller_knows_what_may_be_started(world: World) -> None:
    world.step()
    session = world.request(strict_handling=True)
    assert world.client.session(session).state == "queued"


def test_the_loop_outlives_a_controller_that_is_away(world: World) -> None:
    stop = threading.Event()
    away = Scaler(Client("http://127.0.0.1:9", tries=1, timeout_s=1), [world.kind], world.nodes)
    thread = threading.Thread(target=away.run, args=(stop, 0.05))
    thread.start()
    session = world.request()
    world.step()
    assert world.step(after=2.0).add == {"small": 1}
    assert world.client.wait_for_session(session).state == "active"
    assert thread.is_alive()
    stop.set()
    thread.join(timeout=30)
    assert not thread.is_alive()
