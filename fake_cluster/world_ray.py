"""The Juice service of a run on a fake Ray cluster: controller and agents are actors, jobs are Ray tasks."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path

import ray

from juice_sim.core.settings import Settings
from juice_sim.quirks import parse as parse_quirks

from .autoscaling import AutoscalingCluster
from .controller_calls import ControllerCalls
from .juice_on_ray import AgentOnRay, JuiceOnRay, start_juice
from .node_types import SLURM_RESOURCE, GpuPool, gpu_node_types, slurm_node_types
from .scenario import Scenario
from .slurm.runners import RayRunner, Runner
from .world_service import START_TIMEOUT_S, AgentPlace, Service, WorldError

IDLE_TIMEOUT_MINUTES = 0.5
AGENTS_PER_NODE = 64  # beyond so many agents of a pool, they share fake nodes
# Two fake nodes stand for the compute nodes of Slurm, and each job is a Ray task of one CPU there; more than fit wait.
# Ray warns (on the driver's stdout) of more than four workers for each core of the machine on one node.
TASK_NODES = 2
TASKS_PER_NODE = 7
WARM_TIMEOUT_S = 30.0


def _connect(address: str) -> None:
    """ray.init, which would put a handler of its own in the place of ours for SIGTERM (and a dump of C++ frames)."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class RayService(Service):
    """A fake Ray cluster of this run's own. `directory` gets the controller's data."""

    def __init__(self, scenario: Scenario, directory: Path) -> None:
        self._scenario = scenario
        self._directory = directory
        self._cluster: AutoscalingCluster | None = None
        self._juice: JuiceOnRay | None = None
        self._places: dict[str, AgentPlace] = {}  # by id of the agent
        self._paused: dict[AgentPlace, str] = {}
        self._connected = False
        self._pools = [
            GpuPool(
                pool.name,
                agents=pool.agents,
                gpus=pool.gpus,
                model=pool.model,
                min_agents=pool.min_agents,
                max_agents=pool.max_agents,
                vram=pool.vram,
                labels=pool.labels,
                taints=pool.taints,
                agents_per_node=min(AGENTS_PER_NODE, pool.agents) if pool.agents > AGENTS_PER_NODE else 1,
            )
            for pool in scenario.pools
        ]

    @property
    def juice(self) -> JuiceOnRay:
        assert self._juice is not None, "the service has not been started"
        return self._juice

    def start(self) -> None:
        if ray.is_initialized():
            raise WorldError("this process is connected to a Ray cluster already; call ray.shutdown() first")
        logging.getLogger("ray").setLevel(logging.ERROR)  # its advice would stand in the middle of the progress
        types = {**gpu_node_types(self._pools), **slurm_node_types(TASK_NODES, TASKS_PER_NODE)}
        types["slurm_node"]["min_workers"] = TASK_NODES
        most = sum(int(each["max_workers"]) for each in types.values())
        try:
            self._cluster = AutoscalingCluster(
                {"CPU": 0}, types, max_workers=most, idle_timeout_minutes=IDLE_TIMEOUT_MINUTES, upscaling_speed=100.0
            )
            self._cluster.start()
            _connect(self._cluster.address)
            self._connected = True
            spec = self._scenario.controller
            default = Settings()
            settings = Settings(
                missing_after_s=default.missing_after_s if spec.missing_after is None else spec.missing_after,
                removed_after_s=default.removed_after_s if spec.removed_after is None else spec.removed_after,
                policies={pool.name: pool.policy for pool in self._scenario.pools if pool.policy},
            )
            self._juice = start_juice(
                self._pools,
                data_dir=self._directory,
                cluster=self._cluster,
                auth=spec.auth,
                settings=settings,
                quirks=parse_quirks(",".join(spec.quirks)),
                idle_after_s=30.0,
            )
            self._warm_up()
        except (OSError, RuntimeError, TimeoutError, ValueError, ray.exceptions.RayError) as error:
            raise WorldError(f"the fake Ray cluster cannot be brought up: {' '.join(str(error).split())}") from None
        self.url = self._juice.url
        self.calls = ControllerCalls(self.url, self._juice.token)
        self.pool_ids = self._juice.pool_ids
        self._seats()

    def stop(self) -> None:
        juice, self._juice = self._juice, None
        cluster, self._cluster = self._cluster, None
        for agent_id in self._paused.values():
            self._signal_again(juice, agent_id)
        self._paused.clear()
        try:
            if juice is not None:
                juice.stop()
        finally:
            if self._connected:
                ray.shutdown()
                self._connected = False
            if cluster is not None:
                cluster.shutdown()

    # -- the controller -----------------------------------------------------------------------------------------------

    def kill_controller(self, sig: int) -> None:
        pid = self.juice.controller_pid
        os.kill(pid, sig)
        deadline = time.monotonic() + START_TIMEOUT_S
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def start_controller(self) -> None:
        # Ray starts it again by itself; here it is only waited for.
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.calls.is_ready():
            if time.monotonic() > deadline:
                raise WorldError(f"Ray has not brought the controller back within {START_TIMEOUT_S:g} s")
            time.sleep(0.05)

    # -- agents -------------------------------------------------------------------------------------------------------

    def _seats(self) -> list[AgentOnRay]:
        """Give each agent that is there a place in its pool: the first free one, in the order of their appearance."""
        present = self.juice.agents()
        ids = {agent.id for agent in present}
        for gone in [agent_id for agent_id in self._places if agent_id not in ids]:
            del self._places[gone]
        for agent in present:
            if agent.id not in self._places:
                taken = {place.position for place in self._places.values() if place.pool == agent.pool}
                position = next(number for number in range(len(taken) + 1) if number not in taken)
                self._places[agent.id] = AgentPlace(agent.pool, position, agent.key.removeprefix("juice-"))
        return present

    def _id_of(self, place: AgentPlace) -> str | None:
        return next((agent_id for agent_id, seat in self._places.items() if seat == place), None)

    def agents(self) -> list[AgentPlace]:
        self._seats()
        return list(self._places.values())

    def kill_agent(self, place: AgentPlace) -> None:
        agent_id = self._id_of(place)
        if agent_id is None:
            return
        if self._paused.pop(place, None) is not None:
            self.juice.resume_agent(agent_id)
        self.juice.kill_agent(agent_id)
        self._places.pop(agent_id, None)

    def hang_agent(self, place: AgentPlace) -> None:
        agent_id = self._id_of(place)
        if agent_id is not None and place not in self._paused:
            self.juice.pause_agent(agent_id)
            self._paused[place] = agent_id

    def return_agent(self, place: AgentPlace) -> str:
        agent_id = self._paused.pop(place, None)
        if agent_id is not None:
            self.juice.resume_agent(agent_id)
            return "goes on"
        if self._id_of(place) is not None:
            return "was there all the time"
        self.juice.add_nodes(place.pool, 1)
        return "started anew"

    @staticmethod
    def _signal_again(juice: JuiceOnRay | None, agent_id: str) -> None:
        if juice is not None:
            try:
                juice.resume_agent(agent_id)
            except (KeyError, ProcessLookupError):
                return  # it is gone: nothing hangs any more

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Have Ray's worker processes started before the first job: each costs most of a second of CPU."""
        meeting = self._directory / "workers"
        meeting.mkdir(mode=0o700)
        count = TASK_NODES * TASKS_PER_NODE
        task = ray.remote(num_cpus=1, resources={SLURM_RESOURCE: 0.0001}, max_retries=0)(_meet)
        ray.get([task.remote(str(meeting), number, count) for number in range(count)], timeout=2 * WARM_TIMEOUT_S)

    def runner(self) -> Runner:
        return RayRunner(lambda node: {SLURM_RESOURCE: 0.0001}, cpus_per_task=1)


def _meet(directory: str, number: int, count: int) -> None:
    """Wait until all `count` tasks run at once, so that none can be given the worker of another."""
    Path(directory, str(number)).touch()
    deadline = time.monotonic() + WARM_TIMEOUT_S
    while len(os.listdir(directory)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
