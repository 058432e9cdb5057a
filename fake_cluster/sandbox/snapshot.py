"""The state of a sandbox at one moment, as plain data: pools with agents and GPUs and their slices, sessions, jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from juice_sim.client import Client
from juice_sim.wire_types import Agent, SessionDetails

from ..slurm.interface import CommandFailed, Job, Slurm


def _job_of(name: str) -> int | None:
    """The job of a session that a hook has named `cluster/job/restarts`."""
    words = name.rsplit("/", 2)
    return int(words[1]) if len(words) == 3 and words[1].isdigit() else None


def _agent(agent: Agent, details: Mapping[str, SessionDetails]) -> dict[str, Any]:
    slices: dict[int, list[dict[str, Any]]] = {gpu.index: [] for gpu in agent.gpus}
    for session in agent.sessions:
        known = details.get(session.id)
        for gpu in session.gpus or ():
            if gpu.index in slices:
                job = _job_of(known.name) if known is not None else None
                slices[gpu.index].append({"session": session.id, "vram": gpu.vram_required, "job": job})
    return {
        "id": agent.id,
        "hostname": agent.hostname,
        "state": agent.state,
        "address": agent.address,
        "labels": dict(agent.labels),
        "taints": dict(agent.taints),
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "vram": gpu.vram,
                "free": gpu.vram - sum(part["vram"] for part in slices[gpu.index]),
                "slices": slices[gpu.index],
            }
            for gpu in agent.gpus
        ],
    }


def _session(session: SessionDetails, pools: Mapping[str, str], hosts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": session.id,
        "state": session.state,
        "pool": pools.get(session.pool_id, session.pool_id),
        "job": _job_of(session.name),
        "name": session.name,
        "agent": hosts.get(session.agent_id),
        "gpus": [{"index": gpu.index, "vram": gpu.vram_required} for gpu in session.gpus or ()],
        "processes": [
            {"pid": link.pid, "name": link.process_name} for link in session.connections or () if link.exit_code is None
        ],
        "requested_at": session.requested_at,
        "active_at": session.active_at,
    }


def _job(job: Job) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "name": job.name,
        "state": job.state.value,
        "reason": job.reason,
        "restarts": job.restarts,
        "exit_code": job.exit_code,
        "nodes": list(job.nodes),
        "submit_time": job.submit_time,
        "start_time": job.start_time,
        "end_time": job.end_time,
    }


def juice_state(client: Client) -> dict[str, Any]:
    """`pools` and `sessions`. Raises ApiError."""
    agents = client.agents(everything=True, sessions=True)
    sessions = client.sessions()
    details = {session.id: session for session in sessions}
    pools = client.pools()
    names = {pool.id: pool.name for pool in pools}
    hosts = {agent.id: agent.hostname for agent in agents}
    return {
        "pools": [
            {
                "name": pool.name,
                "id": pool.id,
                "agents": [_agent(agent, details) for agent in agents if agent.pool_id == pool.id],
            }
            for pool in pools
        ],
        "sessions": [_session(session, names, hosts) for session in sessions],
    }


def slurm_state(slurm: Slurm) -> dict[str, Any]:
    """`nodes` and `jobs`; with `slurm_problem` instead when slurmctld does not answer."""
    try:
        jobs: Iterable[Job] = slurm.jobs()
        return {"nodes": slurm.node_states(), "jobs": [_job(job) for job in jobs]}
    except CommandFailed as error:
        return {"nodes": {}, "jobs": [], "slurm_problem": " ".join(str(error).split())}
