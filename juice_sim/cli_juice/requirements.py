"""What a session shall have: the options of `juice session request` and `juice run`, and how a session is got."""

from __future__ import annotations

import argparse
import re
import time
from typing import TYPE_CHECKING

from .account import Failure

if TYPE_CHECKING:
    from ..client import Client
    from ..wire_types import Session, SessionRequirements

GRACE_S = 4.0
"""Seconds beyond --wait-for: controller and agent take up to a second each even when a GPU is free."""

_PAIR = re.compile(r"\s*[^\s=!,()]+\s*=\s*[^\s=!,()]*\s*")
_OPTIONS = ("gpu_ids", "pool_ids", "match_labels", "tolerates", "num_gpus", "vram")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what the session shall have."""
    parser.add_argument("--gpu-ids", metavar="UUID,..", help="GPUs to allocate (see `juice gpu list`)")
    parser.add_argument("--pool-ids", metavar="POOL,..", help="pools from which to allocate: ids or names")
    parser.add_argument(
        "--match-labels", metavar="K=V,..", help="labels of the agent; also `key in (a,b)` and `key!=value`"
    )
    parser.add_argument("--tolerates", metavar="K=V,..", help="taints that are tolerated")
    parser.add_argument(
        "--wait-for",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="maximum number of seconds to wait for a GPU (default: 0)",
    )
    parser.add_argument("--num-gpus", type=int, metavar="N", help="number of GPUs required (default: 1)")
    parser.add_argument("--vram", metavar="SIZE", help="VRAM instead of a whole GPU: 2.5, 2.5GiB, 2560MiB; bare: GiB")
    parser.add_argument("--vram-strict", action="store_true", help="not a byte less than --vram")
    parser.add_argument(
        "--session-timeout",
        type=float,
        default=-1,
        metavar="SECONDS",
        help="time after which the session is returned (default: -1, never)",
    )
    parser.add_argument("--no-version-check", action="store_true", help="accepted; versions are not checked here")


def any_given(args: argparse.Namespace) -> bool:
    """Whether the user has said what the session shall have."""
    return any(getattr(args, name) is not None for name in _OPTIONS)


def wanted(args: argparse.Namespace, client: Client) -> list[SessionRequirements]:
    """The requirements, one for each pool that may serve them (in the user's order). Failure for what is wrong."""
    from .. import wire_types as w
    from ..cli.agent import parse_pairs
    from ..core.selectors import SelectorError, parse_selector
    from ..core.units import VramError, parse_vram

    gpus = 1 if args.num_gpus is None else args.num_gpus
    if not 1 <= gpus <= 1024:
        raise Failure(f"--num-gpus {gpus}: accepted: 1 to 1024", 2)
    if args.wait_for < 0 or args.wait_for != args.wait_for:
        raise Failure(f"--wait-for {args.wait_for:g}: accepted: seconds, 0 or more", 2)
    try:
        vram = parse_vram(args.vram) if args.vram is not None else 0
    except VramError as error:
        raise Failure(f"--vram: {error}", 2) from None
    buses: list[str] = []
    pools = _pools(args, client)
    if args.gpu_ids is not None:
        pool_id, buses = _gpus_named(args.gpu_ids, client)
        if args.num_gpus is not None and gpus != len(buses):
            raise Failure(f"--num-gpus {gpus} and {len(buses)} --gpu-ids: leave one of them out", 2)
        if args.pool_ids is not None and pool_id not in pools:
            raise Failure(f"--gpu-ids {args.gpu_ids}: in none of the pools {args.pool_ids}", 2)
        gpus, pools = len(buses), [pool_id]
    if vram and gpus > 1:
        raise Failure("--vram goes with one GPU only: slices are for single-GPU sessions", 2)
    labels: dict[str, str] = {}
    selector = ""
    try:
        if args.match_labels and all(_PAIR.fullmatch(word) for word in args.match_labels.split(",")):
            labels = parse_pairs(args.match_labels, "--match-labels")
        elif args.match_labels:
            selector = args.match_labels
            parse_selector(selector)
        tolerates = parse_pairs(args.tolerates or "", "--tolerates")
    except (ValueError, SelectorError) as error:
        raise Failure(str(error), 2) from None
    return [
        w.SessionRequirements(
            pool_id=pool_id,
            gpus=[w.GpuRequirement(vram_required=vram, pci_bus=buses[at] if buses else "") for at in range(gpus)],
            match_labels=labels,
            tolerates=tolerates,
            label_selector=selector,
            vram_strict=args.vram_strict,
            session_timeout=args.session_timeout if args.session_timeout > 0 else None,
        )
        for pool_id in pools
    ]


def _pools(args: argparse.Namespace, client: Client) -> list[str]:
    """Ids of the pools; [""] (any) when the user names none."""
    if args.pool_ids is None:
        return [""]
    known = client.pools()
    ids = {pool.name: pool.id for pool in known} | {pool.id: pool.id for pool in known}
    result = []
    for word in filter(None, (part.strip() for part in args.pool_ids.split(","))):
        if word not in ids:
            names = ", ".join(sorted(pool.name for pool in known)) or "there is no pool that you may see"
            raise Failure(f"--pool-ids: pool {word!r} is unknown; accepted: {names}", 2)
        if ids[word] not in result:
            result.append(ids[word])
    if not result:
        raise Failure("--pool-ids is empty; accepted: ids or names of pools, separated by commas", 2)
    return result


def _gpus_named(text: str, client: Client) -> tuple[str, list[str]]:
    """(pool id, PCI buses) of GPUs by UUID; all must be on one agent."""
    wanted_ids = [word.strip() for word in text.split(",") if word.strip()]
    found = {gpu.uuid: (agent, gpu) for agent in client.agents() for gpu in agent.gpus}
    missing = next((name for name in wanted_ids if name not in found), None)
    if missing is not None or not wanted_ids:
        raise Failure(f"--gpu-ids: GPU {missing or text!r} is unknown; `juice gpu list` shows those that there are", 2)
    if len({found[name][0].id for name in wanted_ids}) > 1:
        raise Failure("--gpu-ids: the GPUs are not on one agent; a session's GPUs come from one machine", 2)
    return found[wanted_ids[0]][0].pool_id, [found[name][1].pci_bus for name in wanted_ids]


class NoGpu(Failure):
    """No session became active in time."""


def obtain(args: argparse.Namespace, client: Client, name: str) -> tuple[Session, SessionRequirements]:
    """An active session; what does not come about is released again. NoGpu after --wait-for, ApiError."""
    from ..client import ApiError

    choices = wanted(args, client)
    end = time.monotonic() + args.wait_for + GRACE_S
    turn = max(GRACE_S, args.wait_for / len(choices)) if len(choices) > 1 else args.wait_for + GRACE_S
    while choices:
        for requirements in list(choices):
            requirements.name = name[:200]
            try:
                session_id = client.request_session(requirements=requirements, strict_handling=True)
            except ApiError as error:
                if error.status != 422 or choices == [requirements]:
                    raise
                choices.remove(requirements)  # this pool can never serve it; another one may
                continue
            session = _active(session_id, args, client, max(0.1, min(turn, end - time.monotonic())))
            if session is not None:
                return session, requirements
            if args.gpu_ids is not None and time.monotonic() < end:
                time.sleep(
                    min(1.0, max(0.0, end - time.monotonic()))
                )  # the wrong GPU came at once; not again and again
        if time.monotonic() >= end:
            break
    raise NoGpu(
        f"no GPU was free within {args.wait_for:g} s; wait longer with --wait-for SECONDS, "
        "or see `juice gpu list --fields hostname,name,usedVram-h,vram-h`"
    )


def _active(session_id: str, args: argparse.Namespace, client: Client, wait_s: float) -> Session | None:
    """The session once it is active; one that is not in time, or has other GPUs than were named, is released."""
    kept = False
    try:
        session = client.wait_for_session(session_id, wait_s)
        kept = session.state == "active" and (args.gpu_ids is None or _is_what_was_named(session, args.gpu_ids, client))
        return session if kept else None
    except TimeoutError:
        return None
    finally:
        if not kept:
            client.release_session(session_id)


def _is_what_was_named(session: Session, gpu_ids: str, client: Client) -> bool:
    """GPUs are requested by their PCI bus, which another agent's may have as well."""
    named = {word.strip() for word in gpu_ids.split(",") if word.strip()}
    for agent in client.agents(sessions=True):
        if agent.address == session.address and session.id in {one.id for one in agent.sessions}:
            by_index = {gpu.index: gpu.uuid for gpu in agent.gpus}
            return {by_index[gpu.index] for gpu in session.gpus or ()} == named
    return False


def configuration(session: Session, requirements: SessionRequirements) -> str:
    """The value of JUICE_CFG_OVERRIDE: what the client library needs to find the session."""
    import msgspec

    value = {
        "id": session.id,
        "servers": [session.address],
        "accessToken": "",
        "requirements": msgspec.to_builtins(requirements),
    }
    return msgspec.json.encode(value).decode()
