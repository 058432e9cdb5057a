"""Faults on demand: rules, matched against each request in order, that delay, refuse, drop or garble it.

The rules are those of docs/contracts.md, section 5. `Faults` decides; the middleware carries out. Nothing here touches
the controller: a fault before the effect never reaches it, one after the effect only spoils the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from . import wire_types as w

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PATH = "/v1/faults"
GARBAGE = b'\x00\xff{"id": "4e0\x1b[31m<html><body>502 Bad Gateway</body>'


class Faults:
    """The rules in force and how often each has fired. `seed` makes probabilities repeatable."""

    def __init__(self, rules: Iterable[w.FaultRule] = (), seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self.replace(rules)

    def replace(self, rules: Iterable[w.FaultRule]) -> None:
        """Put these rules in force instead of the present ones; counters start at 0."""
        self.rules = list(rules)
        for rule in self.rules:
            rule.fired = 0
        self._passed = [0] * len(self.rules)

    def match(self, method: str, path: str) -> w.FaultRule | None:
        """The rule that applies to this request (and count it), or None."""
        for position, rule in enumerate(self.rules):
            if rule.method not in ("*", method) or not path.startswith(rule.path):
                continue
            if rule.count is not None and rule.fired >= rule.count:
                continue
            if self._passed[position] < rule.after:
                self._passed[position] += 1
                continue
            if rule.probability < 1.0 and self._random.random() >= rule.probability:
                continue
            rule.fired += 1
            return rule
        return None


def middleware(faults: Faults) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """The aiohttp middleware that carries the rules out. It belongs outside of everything else."""

    @web.middleware
    async def apply(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not faults.rules or request.path.startswith(PATH):
            return await handler(request)
        rule = faults.match(request.method, request.path)
        if rule is None:
            return await handler(request)
        return await carry_out(rule, request, handler)

    return apply


async def carry_out(rule: w.FaultRule, request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer the request as the rule says."""
    if rule.action == "delay":
        await asyncio.sleep(rule.seconds)
        return await handler(request)
    if rule.action == "drop_before":
        await request.read()
        return _hang_up(request)
    if rule.action == "drop_after":
        await handler(request)
        return _hang_up(request)
    if rule.action == "hang":
        await request.read()
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.1)
        return _hang_up(request)
    await request.read()
    if rule.action == "garbage":
        return web.Response(body=rule.body.encode() or GARBAGE, headers={"Content-Type": "application/json"})
    if rule.action == "empty":
        return web.Response()
    headers = {"Content-Type": "application/json" if rule.body[:1] in ("{", "[") else "text/plain"}
    if rule.retry_after is not None:
        headers["Retry-After"] = f"{rule.retry_after:g}" if isinstance(rule.retry_after, float) else rule.retry_after
    body = rule.body or f"injected fault {rule.name}".rstrip()
    return web.Response(status=rule.status, body=body.encode(), headers=headers)


def _hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
