"""Juice on a cluster of fake nodes: one cluster for all tests of this file, since they do not disturb each other."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_cluster.autoscaling import AutoscalingCluster
from fake_cluster.node_types import GpuPool, gpu_node_types
from fake_cluster.process_tree import command_line
from juice_sim.client import Client
from juice_sim.core.settings import Settings

from .conftest import until

ray = pytest.importorskip("ray")

from fake_cluster.juice_on_ray import JuiceOnRay, start_juice  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

POOLS = [
    GpuPool("test", agents=1, gpus=2, model="A10"),
    GpuPool("elastic", agents=0, gpus=4, model="A100-80", max_agents=1),
    GpuPool("crowd", agents=60, gpus=8, model="T4", agents_per_node=60),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[AutoscalingCluster]:
    with AutoscalingCluster({"CPU": 0}, gpu_node_types(POOLS), max_workers=4, idle_timeout_minutes=0.03) as started:
        yield started


@pytest.fixture(scope="module")
def juice(cluster: AutoscalingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JuiceOnRay]:
    settings = Settings(missing_after_s=10.0, removed_after_s=5.0)
    data_dir = tmp_path_factory.mktemp("controller")
    with start_juice(POOLS, data_dir=data_dir, cluster=cluster, settings=settings, idle_after_s=2.0) as started:
        yield started
    ray.shutdown()


@pytest.fixture
def client(juice: JuiceOnRay) -> Iterator[Client]:
    with juice.client() as made:
        yield made


def node_types(cluster: AutoscalingCluster) -> dict[str, str]:
    return {node.node_id: node.node_type for node in cluster.status().nodes}


def test_agents_sit_on_the_nodes_that_carry_their_gpus(cluster: AutoscalingCluster, juice: JuiceOnRay) -> None:
    types = node_types(cluster)
    assert {types[agent.node_id] for agent in juice.agents() if agent.pool == "test"} == {"juice_test"}
    crowd = [agent for agent in juice.agents() if agent.pool == "crowd"]
    assert len(crowd) == 60
    assert len({agent.pid for agent in crowd}) == 1  # many agents, one process


def test_an_agent_serves_sessions(juice: JuiceOnRay, client: Client) -> None:
    whole = client.request_session(juice.pool_ids["crowd"], gpus=8)
    assert client.wait_for_session(whole).state == "active"
    (used,) = [agent for agent in juice.agents() if agent.sessions]
    assert used.pool == "crowd"
    client.release_session(whole)
    until(lambda: client.session(whole).state == "closed", "the end of the session")


def test_a_queued_session_brings_up_a_node_which_goes_when_it_is_idle(
    cluster: AutoscalingCluster, juice: JuiceOnRay, client: Client
) -> None:
    assert cluster.status().count("juice_elastic") == 0
    session = client.request_session(juice.pool_ids["elastic"], gpus=3, strict_handling=True)
    assert client.wait_for_session(session, timeout_s=90).state == "active"
    assert cluster.status().count("juice_elastic") == 1
    client.release_session(session)
    cluster.wait_for_nodes(0, timeout=90, node_type="juice_elastic")
    assert [agent for agent in juice.agents() if agent.pool == "elastic"] == []
    assert cluster.status().count("juice_test") == 1  # a pool that may not shrink does not


def test_a_controller_that_is_killed_comes_back_at_its_address_with_its_sessions(
    juice: JuiceOnRay, client: Client
) -> None:
    active = client.request_session(juice.pool_ids["test"])
    assert client.wait_for_session(active).state == "active"
    queued = client.request_session(juice.pool_ids["test"], gpus=2)
    agents = {agent.id for agent in juice.agents()}

    killed = juice.kill_controller()
    assert juice.controller_pid != killed
    assert client.session(active).state == "active"
    assert client.session(queued).state == "queued"
    client.release_session(active)
    assert client.wait_for_session(queued).state == "active"
    client.release_session(queued)
    until(lambda: client.session(queued).state == "closed", "the end of the session")
    assert {agent.id for agent in juice.agents()} == agents


def test_a_killed_agent_loses_its_sessions_and_no_other(juice: JuiceOnRay, client: Client) -> None:
    lost = client.request_session(juice.pool_ids["crowd"])
    kept = client.request_session(juice.pool_ids["test"])
    for session in (lost, kept):
        assert client.wait_for_session(session).state == "active"
    victim = next(agent for agent in juice.agents() if agent.pool == "crowd" and agent.sessions)
    juice.kill_agent(victim.id)
    with pytest.raises(KeyError, match=victim.id):
        juice.kill_agent(victim.id)
    juice.wait_for_agents(59, pool="crowd")
    until(lambda: client.session(lost).state == "closed", "the controller to give the session up")
    assert client.session(kept).state == "active"
    client.release_session(kept)


def test_a_paused_agent_goes_missing_and_comes_back(juice: JuiceOnRay, client: Client) -> None:
    (agent,) = [agent for agent in juice.agents() if agent.pool == "test"]
    session = client.request_session(juice.pool_ids["test"])
    assert client.wait_for_session(session).state == "active"
    juice.pause_agent(agent.id)
    try:
        until(lambda: client.agent(agent.id).state == "missing", "the agent to go missing")
    finally:
        juice.resume_agent(agent.id)
    until(lambda: client.agent(agent.id).state == "active", "the agent to come back")
    assert client.session(session).state == "active"
    client.release_session(session)


def test_tokens_are_in_files_of_this_user_only(cluster: AutoscalingCluster, juice: JuiceOnRay, client: Client) -> None:
    assert juice.token is not None
    directory = Path(ray.get(ray.get_actor("juice-controller", namespace="juice").stats.remote())["data_dir"])
    secrets = {directory / "admin.token", directory / "agents.token"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    agents_token = (directory / "agents.token").read_text().strip()
    with Client(juice.url, agents_token) as agent:
        who = agent.whoami()
        assert not who.admin
        assert set(who.permissions) == {"register_agent"}
    for pid in cluster.pids:
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        for secret in (juice.token, agents_token):
            assert secret not in environment
            assert secret not in " ".join(command_line(pid))
