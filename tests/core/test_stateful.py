"""Random commands: invariants after each, and the controller equals the fold of its events and its own snapshot."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from juice_sim.core import codec
from juice_sim.core.commands import (
    CloseSession,
    Command,
    CreatePool,
    CreateToken,
    DeclareNodeTypes,
    DeletePool,
    GrantPermission,
    RegisterAgent,
    RequestSession,
    RevokePermission,
    RevokeToken,
    SessionReport,
    Tick,
    UpdateAgent,
)
from juice_sim.core.controller import ADMIN, Controller, Principal
from juice_sim.core.errors import Refused
from juice_sim.core.events import Event
from juice_sim.core.model import (
    AgentState,
    Connection,
    Gpu,
    GpuRequirement,
    NodeType,
    Permission,
    Requirements,
    SessionState,
)
from juice_sim.core.settings import SKIP, STRICT_FIFO, Settings

ALICE = Principal("alice")
PRINCIPALS = (ADMIN, ALICE, Principal("bob"), Principal("root", is_admin=True))
MOSTLY = st.sampled_from((ADMIN, ADMIN, ALICE, ALICE, *PRINCIPALS))
SIZES = (1, 93, 99, 100, 101, 107, 108, 200)
LABELS = ({}, {"zone": "a"}, {"zone": "b", "gpu": "A10"})
TAINTS = ({}, {"dedicated": "ml"})
BUSES = ("", "", "", "0:1", "0:2")
SELECTORS = ("", "", "", "zone=a", "zone!=a", "gpu in (A10,H100)", "!gpu")


class Machine(RuleBasedStateMachine):
    """Any command at any time by anyone; what the controller refuses must leave it as it was."""

    @initialize(
        policies=st.sampled_from(("first_fit", "best_fit")),
        queue=st.sampled_from((SKIP, SKIP, STRICT_FIFO)),
        mixed=st.booleans(),
    )
    def start(self, policies: str, queue: str, mixed: bool) -> None:
        self.settings = Settings(
            default_policy=policies,
            default_queue_policy=queue,
            policies={"p1": "best_fit"} if mixed else {},
            queue_policies={"p0": STRICT_FIFO} if mixed else {},
            history_s=3600.0,
        )
        self.ids = (f"{number:04d}" for number in itertools.count(1))
        self.controller = Controller(self.settings, lambda: next(self.ids))
        self.now = 50.0
        self.log: list[Event] = []
        for name in ("p0", "p1"):
            pool = self.do(CreatePool(name), ALICE)
            for host, sizes in (("a", (100, 200)), ("b", (108, 100, 100))):
                gpus = tuple(Gpu(i, f"u{i}", "A10", size, pci_bus=f"0:{i}") for i, size in enumerate(sizes))
                self.do(RegisterAgent(host, f"{name}{host}:1", pool.id, gpus, "1", {"zone": host}), ALICE)

    def do(self, command: Command, principal: Principal) -> Any:
        before = self.controller.snapshot()
        try:
            return self.controller.handle(command, now=self.now, principal=principal)
        except Refused as refusal:
            assert "\n" not in str(refusal)
            assert self.controller.snapshot() == before, f"{command} was refused and changed something"
            return None
        finally:
            self.log += self.controller.take_events()

    def pick(self, data: st.DataObject, things: list[Any]) -> Any:
        return data.draw(st.sampled_from(things)) if things else "nothing"

    def pool_ids(self) -> list[str]:
        return [pool.id for pool in self.controller.pools()]

    @rule(data=st.data(), who=st.sampled_from(PRINCIPALS), count=st.integers(1, 3), label=st.sampled_from(LABELS))
    def register(self, data: st.DataObject, who: Principal, count: int, label: dict[str, str]) -> None:
        gpus = tuple(
            Gpu(i, f"u{i}", "A10", data.draw(st.sampled_from((100, 108, 200))), pci_bus=f"0:{i}") for i in range(count)
        )
        host = data.draw(st.sampled_from(("h1", "h2", "h3", "")))
        taints = data.draw(st.sampled_from(TAINTS))
        address = f"{host}:1" if host else ""
        self.do(RegisterAgent(host, address, self.pick(data, self.pool_ids()), gpus, "1", label, taints), who)

    @rule(data=st.data(), who=MOSTLY, strict=st.booleans(), refuse=st.booleans(), whole=st.booleans())
    def request(self, data: st.DataObject, who: Principal, strict: bool, refuse: bool, whole: bool) -> None:
        if whole:
            count = data.draw(st.integers(1, 3))
            gpus = tuple(GpuRequirement(0, data.draw(st.sampled_from(BUSES))) for _ in range(count))
        else:
            gpus = (GpuRequirement(data.draw(st.sampled_from(SIZES)), data.draw(st.sampled_from(BUSES))),)
        requirements = Requirements(
            gpus,
            data.draw(st.sampled_from([*self.pool_ids(), "", ""])),
            match_labels=data.draw(st.sampled_from((LABELS[0], LABELS[0], LABELS[1]))),
            tolerates=data.draw(st.sampled_from(TAINTS)),
            label_selector=data.draw(st.sampled_from(SELECTORS)),
            strict=strict,
        )
        key = data.draw(st.sampled_from(("", "", "k1", "k2")))
        timeout_s = data.draw(st.sampled_from((None, None, 60.0)))
        self.do(RequestSession(requirements, key, "", timeout_s, refuse), who)

    @rule(
        data=st.data(),
        wanted=st.lists(st.sampled_from((0, 0, 50, 99, 100, 107)), min_size=2, max_size=8),
        who=st.sampled_from((ADMIN, ALICE)),
    )
    def plain_requests(self, data: st.DataObject, wanted: list[int], who: Principal) -> None:
        """More demand than there are GPUs, so that there is a queue most of the time."""
        for vram in wanted:
            pool_id = data.draw(st.sampled_from([*self.pool_ids()[:2], ""]))
            self.do(RequestSession(Requirements((GpuRequirement(vram),), pool_id)), who)

    @rule(data=st.data(), who=MOSTLY)
    def close(self, data: st.DataObject, who: Principal) -> None:
        sessions = [session.id for session in self.controller.sessions(include_closed=True)]
        self.do(CloseSession(self.pick(data, sessions)), who)

    @rule(
        data=st.data(), state=st.sampled_from((None, None, AgentState.ACTIVE, AgentState.DISABLED, AgentState.CLOSED))
    )
    def report(self, data: st.DataObject, state: AgentState | None) -> None:
        agents = self.controller.agents()
        if not agents:
            return
        agent = data.draw(st.sampled_from(agents))
        ids = sorted(agent.session_ids)
        chosen = data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
        said = st.sampled_from((SessionState.ACTIVE, SessionState.CLOSED, SessionState.CLOSED, SessionState.CANCELING))
        connection = Connection("c", 1, "python", data.draw(st.sampled_from((None, 0, -1))))
        reports = {sid: SessionReport(data.draw(said), {"c": connection}) for sid in chosen}
        self.do(UpdateAgent(agent.id, state, reports), ADMIN)

    @rule(
        seconds=st.sampled_from((0.5, 0.5, 1.0, 10.0, 10.0, 20.0, 31.0, 301.0, 4000.0, -5.0, -500.0)),
        ticks=st.integers(1, 2),
    )
    def pass_time(self, seconds: float, ticks: int) -> None:
        self.now += seconds
        for _ in range(ticks):
            self.do(Tick(), ADMIN)

    @rule()
    def everyone_reports(self) -> None:
        for agent in self.controller.agents():
            session_states = {sid: self.controller.session(sid).state for sid in sorted(agent.session_ids)}
            told = {
                sid: SessionReport(SessionState.CLOSED if state is SessionState.CANCELING else SessionState.ACTIVE)
                for sid, state in session_states.items()
            }
            self.do(UpdateAgent(agent.id, None, told), ADMIN)

    @rule(
        data=st.data(),
        who=st.sampled_from(PRINCIPALS),
        permission=st.sampled_from(Permission),
        user=st.sampled_from(("alice", "bob")),
        grant=st.booleans(),
    )
    def permit(self, data: st.DataObject, who: Principal, permission: Permission, user: str, grant: bool) -> None:
        pool_id = self.pick(data, self.pool_ids())
        command = GrantPermission if grant else RevokePermission
        self.do(command(permission, user, pool_id), who)

    @rule(data=st.data(), who=st.sampled_from(PRINCIPALS), name=st.sampled_from(("p2", "p3", "", "p\n")))
    def pools_come_and_go(self, data: st.DataObject, who: Principal, name: str) -> None:
        self.do(CreatePool(name), who)
        self.do(DeletePool(self.pick(data, self.pool_ids()[1:])), who)

    @rule(data=st.data(), who=st.sampled_from(PRINCIPALS), admin=st.booleans(), user=st.sampled_from(("", "alice")))
    def tokens(self, data: st.DataObject, who: Principal, admin: bool, user: str) -> None:
        permissions = tuple((Permission.CREATE_SESSION, pool_id) for pool_id in self.pool_ids()[:1])
        secret = f"{data.draw(st.integers(0, 5)):064x}"
        self.do(CreateToken("t", secret, user, 3600.0, admin, permissions), who)
        if data.draw(st.booleans()):
            self.do(RevokeToken(self.pick(data, [token.id for token in self.controller.tokens()])), who)

    @rule(data=st.data(), workers=st.integers(0, 2))
    def node_types(self, data: st.DataObject, workers: int) -> None:
        pool_id = self.pick(data, self.pool_ids())
        node = NodeType("big", pool_id, tuple(Gpu(i, f"n{i}", "H100", 200) for i in range(3)), {}, {}, workers)
        self.do(DeclareNodeTypes((node,)), ADMIN)

    @rule(replayed=st.booleans())
    def restart(self, replayed: bool) -> None:
        self.controller = self.replayed() if replayed else self.restored()

    def replayed(self) -> Controller:
        controller = Controller(self.settings, lambda: next(self.ids))
        stored = json.loads(json.dumps([codec.encode_event(event) for event in self.log]))
        controller.replay(codec.decode_event(event) for event in stored)
        return controller

    def restored(self) -> Controller:
        stored = json.loads(json.dumps(self.controller.snapshot()))
        return Controller.restore(stored, self.settings, lambda: next(self.ids))

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "controller"):
            return
        self.controller.validate()
        dumped = json.dumps(self.controller.snapshot())
        for other in (self.replayed(), self.restored()):
            assert json.dumps(other.snapshot()) == dumped
            assert other.queue() == self.controller.queue()
            other.validate()

    def teardown(self) -> None:
        """When everybody lets go, nothing is held any more (HAMi#2923)."""
        if not hasattr(self, "controller"):
            return
        for session in self.controller.sessions():
            self.do(CloseSession(session.id), ADMIN)
        self.everyone_reports()
        self.everyone_reports()
        for _ in range(200):  # queued ones that were assigned meanwhile
            left = self.controller.sessions()
            if not left:
                break
            for session in left:
                self.do(CloseSession(session.id), ADMIN)
            self.everyone_reports()
        assert not self.controller.sessions()
        for agent in self.controller.agents():
            assert set(self.controller.gpu_use(agent.id).values()) == {(0, 0)}


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRandomCommands = Machine.TestCase
