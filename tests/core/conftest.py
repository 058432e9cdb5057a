"""A controller with a hand-driven clock and numbered ids; what it was asked is checked for invariants on every step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from juice_sim.core.commands import (
    CloseSession,
    Command,
    CreatePool,
    RegisterAgent,
    RequestSession,
    SessionReport,
    Tick,
    UpdateAgent,
)
from juice_sim.core.controller import ADMIN, Controller, Principal
from juice_sim.core.events import Event
from juice_sim.core.model import AgentState, Gpu, GpuRequirement, Requirements, Session, SessionState
from juice_sim.core.settings import Settings

GIB = 2**30


class World:
    """One controller; each command is followed by `validate`, and by a comparison with the fold of its events."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.now = 1000.0
        self.ids = (f"id-{number}" for number in itertools.count(1))
        self.controller = Controller(self.settings, lambda: next(self.ids))
        self.events: list[Event] = []

    def do(self, command: Command, principal: Principal = ADMIN) -> Any:
        """Handle a command now; on refusal, check that nothing has changed."""
        before = self.dump()
        try:
            reply = self.controller.handle(command, now=self.now, principal=principal)
        except Exception:
            assert self.dump() == before and not self.controller.take_events()
            raise
        self.events += self.controller.take_events()
        self.controller.validate()
        return reply

    def dump(self) -> str:
        return json.dumps(self.controller.snapshot())

    def pool(self, name: str = "test", principal: Principal = ADMIN) -> str:
        pool_id: str = self.do(CreatePool(name), principal).id
        return pool_id

    def agent(self, pool_id: str, *vram: int, principal: Principal = ADMIN, **fields: Any) -> str:
        """Register an agent with GPUs of these sizes (bytes)."""
        number = len(self.controller.agents(states=AgentState))
        gpus = tuple(
            Gpu(i, f"GPU-{number}-{i}", "NVIDIA A10", size, pci_bus=f"0000:{i:02X}:00.0") for i, size in enumerate(vram)
        )
        fields = {"hostname": f"gpu{number}", "address": f"10.0.0.{number}:43210", "gpus": gpus} | fields
        agent_id: str = self.do(RegisterAgent(pool_id=pool_id, **fields), principal)
        return agent_id

    def request(
        self,
        pool_id: str,
        vram: int = 0,
        gpus: int = 1,
        *,
        principal: Principal = ADMIN,
        more: Any = None,
        **requirements: Any,
    ) -> str:
        """Ask for `gpus` whole GPUs, or a slice of `vram` bytes; `more` are fields of RequestSession."""
        wanted = requirements.pop("wanted", (GpuRequirement(vram),) * gpus)
        needed = Requirements(wanted, pool_id, **requirements)
        session_id: str = self.do(RequestSession(needed, **(more or {})), principal)
        return session_id

    def session(self, session_id: str) -> Session:
        return self.controller.session(session_id)

    def state(self, session_id: str) -> str:
        return self.session(session_id).state.value

    def vram(self, session_id: str) -> list[int]:
        return [grant.vram for grant in self.session(session_id).grants]

    def report(self, agent_id: str, state: AgentState | None = None, **sessions: SessionState) -> None:
        """The agent reports these sessions (id with _ for -)."""
        reports = {sid.replace("_", "-"): SessionReport(reported) for sid, reported in sessions.items()}
        self.do(UpdateAgent(agent_id, state, reports))

    def activate(self, session_id: str) -> None:
        agent_id = self.session(session_id).agent_id
        self.do(UpdateAgent(agent_id, sessions={session_id: SessionReport(SessionState.ACTIVE)}))

    def close(self, session_id: str) -> None:
        """The owner closes, the agent obeys."""
        self.do(CloseSession(session_id))
        session = self.session(session_id)
        if session.state is SessionState.CANCELING:
            self.do(UpdateAgent(session.agent_id, sessions={session_id: SessionReport(SessionState.CLOSED)}))

    def advance(self, seconds: float) -> None:
        """Let time pass, with each Tick exactly when it is due and one at the end."""
        end = self.now + seconds
        while (due := self.controller.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.do(Tick())
        self.now = end
        self.do(Tick())


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World
