"""`juice pool|gpu|agent list`, `juice agent info`."""

from __future__ import annotations

import argparse
from typing import Any

from . import listing
from .account import find_account

AGENT_FIELDS = ("state", "hostname", "pool.name", "id", "numgpus")
AGENT_KNOWN = (*AGENT_FIELDS, "pool.id", "address", "version", "labels", "taints", "sessions")
GPU_FIELDS = ("hostname", "name", "uuid", "agentVersion", "vram-h")
GPU_KNOWN = (*GPU_FIELDS, "vram", "usedVram", "usedVram-h", "index", "pciBus", "driver", "agentId", "pool.name")
POOL_FIELDS = ("organization.name", "name", "id", "sessions", "gpuCount")
POOL_KNOWN = (*POOL_FIELDS, "agents", "users")


def add_parser(subparsers: Any) -> None:
    """Add the three subcommands."""
    agent = subparsers.add_parser("agent", help="agents").add_subparsers(dest="action", metavar="ACTION", required=True)
    one = agent.add_parser("list", aliases=["ls"], help="list all the agents accessible to the user")
    listing.add_options(one, AGENT_FIELDS)
    one.set_defaults(run=agents, id=None)
    info = agent.add_parser("info", help="one agent")
    info.add_argument("id", metavar="ID", help="id of the agent")
    listing.add_options(info, AGENT_FIELDS)
    info.set_defaults(run=agents)
    gpu = subparsers.add_parser("gpu", help="GPUs").add_subparsers(dest="action", metavar="ACTION", required=True)
    two = gpu.add_parser("list", aliases=["ls"], help="list all the GPUs accessible to the user")
    listing.add_options(two, GPU_FIELDS, "3,2,1")
    two.set_defaults(run=gpus)
    pool = subparsers.add_parser("pool", help="pools").add_subparsers(dest="action", metavar="ACTION", required=True)
    three = pool.add_parser("list", aliases=["ls"], help="list all the pools accessible to the user")
    listing.add_options(three, POOL_FIELDS, "3,2,5,4,1")
    three.set_defaults(run=pools)


def size_text(size: int) -> str:
    """A size as people read it: `24 GiB`, `1.5 GiB`, `0 B`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, size.bit_length() - 1) // 10)
    return f"{size / 1024**power:.2f}".rstrip("0").rstrip(".") + f" {units[power]}"


def _pairs(pairs: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))


def agents(args: argparse.Namespace) -> int:
    """`agent list`, `agent info ID`."""
    import msgspec

    with find_account(args.controller).client() as client:
        names = {pool.id: pool.name for pool in client.pools()}
        found = [client.agent(args.id)] if args.id else client.agents(everything=True, sessions=True)
    rows = [
        {
            "state": agent.state,
            "hostname": agent.hostname,
            "pool.name": names.get(agent.pool_id, ""),
            "pool.id": agent.pool_id,
            "id": agent.id,
            "numgpus": len(agent.gpus),
            "address": agent.address,
            "version": agent.version,
            "labels": _pairs(agent.labels),
            "taints": _pairs(agent.taints),
            "sessions": len(agent.sessions),
        }
        for agent in found
    ]
    listing.show(args, rows, AGENT_KNOWN, [msgspec.to_builtins(agent) for agent in found])
    return 0


def gpus(args: argparse.Namespace) -> int:
    """`gpu list`. Used VRAM is what sessions hold."""
    import msgspec

    with find_account(args.controller).client() as client:
        names = {pool.id: pool.name for pool in client.pools()}
        found = client.agents(sessions=True)
    rows, objects = [], []
    for agent in found:
        held: dict[int, int] = {}
        for session in agent.sessions:
            for grant in session.gpus or ():
                held[grant.index] = held.get(grant.index, 0) + grant.vram_required
        for gpu in agent.gpus:
            used = min(held.get(gpu.index, 0), gpu.vram)
            rows.append(
                {
                    "hostname": agent.hostname,
                    "name": gpu.name,
                    "uuid": gpu.uuid,
                    "agentVersion": agent.version,
                    "agentId": agent.id,
                    "vram": gpu.vram,
                    "vram-h": size_text(gpu.vram),
                    "usedVram": used,
                    "usedVram-h": size_text(used),
                    "index": gpu.index,
                    "pciBus": gpu.pci_bus,
                    "driver": gpu.driver,
                    "pool.name": names.get(agent.pool_id, ""),
                }
            )
            shown = msgspec.to_builtins(gpu)
            objects.append({**shown, "hostname": agent.hostname, "agentId": agent.id, "usedVram": used})
    listing.show(args, rows, GPU_KNOWN, objects)
    return 0


def pools(args: argparse.Namespace) -> int:
    """`pool list`. The simulated controller has one organization, without a name."""
    import msgspec

    with find_account(args.controller).client() as client:
        found = client.pools()
        count: dict[str, int] = {}
        for agent in client.agents():
            count[agent.pool_id] = count.get(agent.pool_id, 0) + len(agent.gpus)
    rows = [
        {
            "organization.name": "",
            "name": pool.name,
            "id": pool.id,
            "sessions": pool.session_count,
            "gpuCount": count.get(pool.id, 0),
            "agents": pool.agent_count,
            "users": pool.user_count,
        }
        for pool in found
    ]
    objects = [{**msgspec.to_builtins(pool), "gpuCount": count.get(pool.id, 0)} for pool in found]
    listing.show(args, rows, POOL_KNOWN, objects)
    return 0
