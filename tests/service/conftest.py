"""A controller in a thread, spoken to over real HTTP, and an agent that is nothing but requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from juice_sim.server import ControllerServer

GIB = 1 << 30


@dataclass
class Caller:
    """Somebody with a token (or none) who sends requests."""

    url: str
    token: str | None = None

    def __post_init__(self) -> None:
        self.http = requests.Session()
        self.http.trust_env = False
        if self.token:
            self.http.headers["Authorization"] = f"Bearer {self.token}"

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        headers = dict(more.pop("headers", {}))
        if body is not None and "data" not in more:
            more["data"] = json.dumps(body)
        if "data" in more:
            headers.setdefault("Content-Type", "application/json")
        return self.http.request(method, self.url + path, headers=headers, timeout=30, **more)

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The JSON (or text) of an answer that must be 200."""
        response = self(method, path, body, **more)
        assert response.status_code == 200, response.text
        if response.headers.get("Content-Type") == "application/json":
            return response.json()
        return response.text


@dataclass
class WireAgent:
    """An agent as a row of requests: what the real one sends, sent when the test says so."""

    call: Caller
    pool_id: str
    address: str = "10.1.2.3:43210"
    gpus: int = 1
    vram: int = 24 * GIB
    hostname: str = "gpu01"

    def body(self) -> dict[str, Any]:
        return {
            "id": "",
            "state": "",
            "hostname": self.hostname,
            "address": self.address,
            "version": "1.2.3",
            "poolId": self.pool_id,
            "gpus": [
                {
                    "index": i,
                    "uuid": f"GPU-{self.hostname}-{i}",
                    "name": "NVIDIA A10",
                    "vram": self.vram,
                    "pciBus": f"{i}",
                }
                for i in range(self.gpus)
            ],
            "labels": {},
            "taints": {},
            "sessions": None,
        }

    def register(self, **changes: Any) -> str:
        self.id: str = self.call.ok("POST", "/v1/register/agent", {**self.body(), **changes})
        return self.id

    def read(self) -> dict[str, Any]:
        return self.call.ok("GET", f"/v1/agent/{self.id}")

    def report(self, **states: str) -> requests.Response:
        sessions = {session_id: {"State": state} for session_id, state in states.items()}
        return self.call("PUT", f"/v1/agent/{self.id}", {"id": self.id, "sessions": sessions})

    def start_all(self) -> None:
        """Report every assigned session active and every canceling one closed, as the real agent's poll does."""
        after = {"assigned": "active", "canceling": "closed"}
        news = {s["id"]: after[s["state"]] for s in self.read()["sessions"] if s["state"] in after}
        assert self.report(**news).status_code == 200


def until(condition: Callable[[], Any], what: str, limit_s: float = 30.0) -> Any:
    """Wait for a condition; its value."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.01)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return until


@pytest.fixture
def start() -> Iterator[Callable[..., ControllerServer]]:
    """Start a controller with given settings; all are stopped in the end."""
    servers: list[ControllerServer] = []

    def begin(*args: Any, **settings: Any) -> ControllerServer:
        server = ControllerServer(*args, **settings).start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture
def server(start: Callable[..., ControllerServer]) -> ControllerServer:
    return start(None)


@pytest.fixture
def admin(server: ControllerServer) -> Caller:
    return Caller(server.url, server.admin_token)


@pytest.fixture(scope="session")
def caller_of() -> type[Caller]:
    return Caller


@pytest.fixture
def pool(admin: Caller) -> str:
    """Id of a pool."""
    return admin.ok("PUT", "/v1/pool", {"name": "test"})["id"]


@pytest.fixture
def agent(admin: Caller, pool: str) -> WireAgent:
    """A registered agent with one GPU of 24 GiB."""
    one = WireAgent(admin, pool)
    one.register()
    return one


@pytest.fixture
def agent_type() -> type[WireAgent]:
    return WireAgent


@pytest.fixture
def member(server: ControllerServer, admin: Caller, pool: str) -> Callable[..., Caller]:
    """Make a caller with given permissions in the pool."""

    def make(*permissions: str, **more: Any) -> Caller:
        wanted = [{"permission": permission, "poolId": pool} for permission in permissions]
        token = admin.ok("POST", "/v1/m2m", {"description": "member", "permissions": wanted, **more})
        caller = Caller(server.url, token["token"])
        caller.user_id = token["userId"]  # type: ignore[attr-defined]
        return caller

    return make
