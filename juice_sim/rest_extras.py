"""Status, health, event stream, node types, faults, metrics, OpenAPI."""

from __future__ import annotations

import logging

import msgspec
from aiohttp import web

from . import __version__, log_format, metrics, openapi, wire
from . import wire_types as w
from .core.commands import DeclareNodeTypes
from .core.errors import Kind, Refused
from .core.model import Agent, AgentState
from .core.permissions import require_admin
from .rest_base import Api, HttpProblem, api_of, as_json, caller, query_flag, read

log = logging.getLogger("juice_sim.rest")

LISTED_BY_OLD_STATUS = 20
MAX_RULES = 1000
STREAM_IDLE_S = 15.0


async def health(request: web.Request) -> web.Response:
    """200, empty."""
    return web.Response()


async def status(request: web.Request) -> web.Response:
    """`{"state","version","hostname"}`."""
    return as_json(w.Status(state="Active", version=__version__, hostname=api_of(request).hostname))


async def old_status(request: web.Request) -> web.Response:
    """The older form, with at most 20 active agents."""
    api = api_of(request)
    service = api.service
    hosts: list[dict[str, object]] = []
    for agent in service.reader.agents():
        if len(hosts) == LISTED_BY_OLD_STATUS:
            break
        if agent.state is AgentState.ACTIVE:
            hosts.append(_old_host(api, agent))
    uptime_ms = int((service.now() - service.started_at) * 1000)
    return as_json({"status": "ok", "version": __version__, "uptime_ms": uptime_ms, "hosts": hosts})


def _old_host(api: Api, agent: Agent) -> dict[str, object]:
    host, _, port = agent.address.rpartition(":")
    reported = api.gpu_metrics.get(agent.id, [])
    gpus = []
    for position, gpu in enumerate(agent.gpus):
        measured = reported[position] if position < len(reported) else w.GpuMetrics()
        gpus.append(
            {
                "vendor": gpu.vendor,
                "model": gpu.model,
                "bus": "OnBoard",
                "busAddress": gpu.pci_bus,
                "vram": gpu.vram,
                "vramDynamic": False,
                "driverVersion": gpu.driver,
                "subDeviceId": f"{gpu.sub_device_id:x}",
                "name": gpu.name,
                "pciBus": gpu.pci_bus,
                "memoryTotal": gpu.vram,
                "memoryUsed": measured.vram_used,
                "memoryFree": max(0, gpu.vram - measured.vram_used),
                "temperatureGpu": measured.temperature_gpu,
                "powerDraw": measured.power_draw / 1000,
                "powerLimit": measured.power_limit / 1000,
                "clockCore": measured.clock_core,
                "clockMemory": measured.clock_memory,
                "uuid": gpu.uuid,
                "ordinal": str(position),
            }
        )
    return {
        "hostname": agent.hostname,
        "port": int(port) if port.isdigit() else 0,
        "uuid": agent.id,
        "action": "UPDATE",
        "nonce": 0,
        "gpu_count": len(gpus),
        "data": gpus,
        "ip": host,
    }


async def events(request: web.Request) -> web.StreamResponse:
    """Newline-delimited JSON, one event a line. `since=SEQ`: those after SEQ (0: all that the log still has);
    `follow=1`: stay, and send new ones as they become durable."""
    require_admin(caller(request), "read the events")
    api = api_of(request)
    service = api.service
    text = request.query.get("since", "0")
    if not (text.isdigit() and text.isascii() and len(text) < 19):
        raise Refused(Kind.INVALID, "not a number", field="since", value=text, accepted="0 or the seq of an event")
    after = int(text)
    follow = query_flag(request, "follow")
    await service.settled()
    oldest = await service.oldest_seq()
    if 0 < after < oldest - 1:
        raise HttpProblem(
            410,
            w.Problem(
                message=f"events up to {oldest - 1} are no longer in the log; start at since={oldest - 1} or since=0",
                code="gone",
                field="since",
                value=after,
                accepted=f"{oldest - 1} or more, or 0",
            ),
        )
    after = max(after, oldest - 1)
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    try:
        await response.prepare(request)
        while True:
            records = await service.records(after)
            if records:
                after = records[-1].seq
                await response.write(b"".join(log_format.stream_line(record.seq, record.body) for record in records))
                continue
            if not follow or service.stopping or request.transport is None or request.transport.is_closing():
                break
            await service.any_event(STREAM_IDLE_S)
        await response.write_eof()
    except ConnectionResetError:
        log.info("an event stream ended: its client has gone")
    return response


async def node_types(request: web.Request) -> web.Response:
    """What an autoscaler may still start; replaces the list."""
    body, _ = await read(request, list[w.NodeType])
    declared = tuple(wire.node_type(entry, f"[{position}]") for position, entry in enumerate(body))
    api_of(request).service.command(DeclareNodeTypes(declared), caller(request))
    return as_json(body)


async def get_faults(request: web.Request) -> web.Response:
    """The rules in force with how often each has fired."""
    require_admin(caller(request), "read the faults")
    return as_json(api_of(request).faults.rules)


async def put_faults(request: web.Request) -> web.Response:
    """Replace the rules."""
    require_admin(caller(request), "set faults")
    body, _ = await read(request, list[w.FaultRule])
    if len(body) > MAX_RULES:
        raise Refused(Kind.INVALID, "too many rules", value=len(body), accepted=f"at most {MAX_RULES}")
    api = api_of(request)
    api.faults.replace(body)
    return as_json(api.faults.rules)


async def delete_faults(request: web.Request) -> web.Response:
    """Remove all rules."""
    require_admin(caller(request), "remove faults")
    api_of(request).faults.replace([])
    return as_json("Faults removed")


async def get_metrics(request: web.Request) -> web.Response:
    """Prometheus text."""
    body, content_type = metrics.render(api_of(request))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def get_openapi(request: web.Request) -> web.Response:
    """The OpenAPI 3.1 document."""
    return web.Response(body=msgspec.json.encode(openapi.document()), headers={"Content-Type": "application/json"})


ROUTES = (
    ("GET", "/health", health, False),
    ("GET", "/v1/status", status, False),
    ("GET", "/status", old_status, False),
    ("GET", "/v1/events", events, True),
    ("PUT", "/v1/node-types", node_types, True),
    # The tool to inject faults stays reachable whatever is simulated.
    ("GET", "/v1/faults", get_faults, False),
    ("PUT", "/v1/faults", put_faults, False),
    ("DELETE", "/v1/faults", delete_faults, False),
    ("GET", "/metrics", get_metrics, False),
    ("GET", "/openapi.json", get_openapi, True),
)
