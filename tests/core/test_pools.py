"""Pools, permissions, tokens, node types, and whatever else is not a session or an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from juice_sim.core.commands import (
    Command,
    CreatePool,
    CreateToken,
    DeclareNodeTypes,
    DeletePool,
    GrantPermission,
    RevokePermission,
    RevokeToken,
)
from juice_sim.core.controller import Principal
from juice_sim.core.errors import Kind, Refused
from juice_sim.core.model import AgentState, Gpu, NodeType, Permission
from juice_sim.core.settings import Settings

if TYPE_CHECKING:
    from .conftest import World

ALICE, BOB = Principal("alice"), Principal("bob")
GPUS = (Gpu(0, "", "A10", 100),)
DAY = 86400.0


def refused(kind: Kind, field: str, act: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as refusal:
        act()
    assert (refusal.value.kind, refusal.value.field) == (kind, field), refusal.value
    return refusal.value


def token(world: World, secret: str = "a", by: Principal | None = None, **fields: Any) -> Any:
    fields = {"description": "hooks", "secret_sha256": secret * 64} | fields
    return world.do(CreateToken(**fields)) if by is None else world.do(CreateToken(**fields), by)


def test_who_makes_a_pool_gets_everything_in_it(world: World) -> None:
    pool = world.do(CreatePool("test"), ALICE)
    assert pool.permissions == {"alice": set(Permission)}
    assert world.controller.pool_counts(pool.id) == (0, 0, 1)
    assert [p.id for p in world.controller.permissions_of("alice")[Permission.ADMIN]] == [pool.id]
    assert world.controller.pools(BOB) == []


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0b", 7, None, "\ud800"])
def test_bad_names_of_pools(world: World, name: Any) -> None:
    refused(Kind.INVALID, "name", lambda: world.do(CreatePool(name)))


@pytest.mark.parametrize("name", ["test", "x" * 255, "my pool", "a#b,c;d'\"$(id)", "dédé", "プール"])
def test_good_names_of_pools(world: World, name: str) -> None:
    pool = world.pool(name)
    error = refused(Kind.CONFLICT, "name", lambda: world.do(CreatePool(name), ALICE))
    assert pool in str(error)


def test_pool_is_deleted_only_when_nothing_uses_it(world: World) -> None:
    pool = world.pool("test", ALICE)
    agent = world.agent(pool, 100)
    session = world.request(pool)
    refused(Kind.FORBIDDEN, "poolId", lambda: world.do(DeletePool(pool), BOB))
    assert "1 agents and 1 open" in str(refused(Kind.CONFLICT, "id", lambda: world.do(DeletePool(pool), ALICE)))
    world.report(agent, AgentState.CLOSED)
    assert world.state(session) == "closed"
    world.do(DeletePool(pool), ALICE)
    refused(Kind.NOT_FOUND, "id", lambda: world.do(DeletePool(pool), ALICE))
    assert world.session(session).pool_id == pool  # history stays readable
    assert world.pool("test") != pool


def test_permissions_are_granted_and_revoked_by_the_pools_admins(world: World) -> None:
    pool = world.pool("test", ALICE)
    for command in (GrantPermission, RevokePermission):
        refused(Kind.FORBIDDEN, "poolId", lambda c=command: world.do(c(Permission.ADMIN, "bob", pool), BOB))
        refused(Kind.NOT_FOUND, "poolId", lambda c=command: world.do(c(Permission.ADMIN, "bob", "x"), ALICE))
        refused(Kind.INVALID, "permission", lambda c=command: world.do(c("root", "bob", pool), ALICE))
        refused(Kind.INVALID, "userId", lambda c=command: world.do(c(Permission.ADMIN, "", pool), ALICE))
    count = len(world.events)
    for _ in range(2):
        world.do(GrantPermission(Permission.REGISTER_AGENT, "bob", pool), ALICE)
    assert len(world.events) == count + 1
    assert world.controller.may(BOB, Permission.REGISTER_AGENT, pool)
    assert not world.controller.may(BOB, Permission.CREATE_SESSION, pool)
    for _ in range(2):
        world.do(RevokePermission(Permission.REGISTER_AGENT, "bob", pool), ALICE)
    assert len(world.events) == count + 2 and world.controller.pool_counts(pool)[2] == 1


def test_admin_of_a_pool_may_do_everything_in_it(world: World) -> None:
    pool = world.pool()
    world.do(GrantPermission(Permission.ADMIN, "bob", pool))
    assert all(world.controller.may(BOB, permission, pool) for permission in Permission)


def test_token_is_a_user_of_its_own(world: World) -> None:
    pool = world.pool()
    made = token(world, permissions=((Permission.CREATE_SESSION, pool),))
    user = world.controller.authenticate("a" * 64, world.now)
    assert user == Principal(f"m2m:{made.id}", False, made.id, world.now + 30 * DAY)
    assert world.state(world.request(pool, principal=user)) == "queued"
    refused(Kind.FORBIDDEN, "poolId", lambda: world.agent(pool, 100, principal=user))


def test_token_expires_and_is_revoked(world: World) -> None:
    made = token(world, lifetime_s=100.0)
    assert world.controller.authenticate("a" * 64, world.now + 99.9).token_id == made.id
    for at in (100.0, 1e9):
        error = refused(Kind.UNAUTHORIZED, "", lambda at=at: world.controller.authenticate("a" * 64, world.now + at))
        assert "expired" in str(error) and "a" * 64 not in str(error)
    world.do(RevokeToken(made.id))
    refused(Kind.UNAUTHORIZED, "", lambda: world.controller.authenticate("a" * 64, world.now))
    refused(Kind.NOT_FOUND, "id", lambda: world.do(RevokeToken(made.id)))
    refused(Kind.UNAUTHORIZED, "", lambda: world.controller.authenticate("unheard of", world.now))


@pytest.mark.parametrize("lifetime_s", [0, -1.0, 365 * DAY + 1, float("nan"), float("inf"), True, "30"])
def test_lifetime_of_a_token(world: World, lifetime_s: Any) -> None:
    refused(Kind.INVALID, "expireDays", lambda: token(world, lifetime_s=lifetime_s))
    token(world, lifetime_s=365 * DAY)


def test_nobody_makes_a_token_that_may_more_than_himself(world: World) -> None:
    pool = world.pool("test", ALICE)
    refused(Kind.FORBIDDEN, "", lambda: token(world, by=ALICE, is_admin=True))
    refused(Kind.FORBIDDEN, "", lambda: token(world, by=ALICE, user_id="bob"))
    refused(Kind.FORBIDDEN, "poolId", lambda: token(world, by=BOB, permissions=((Permission.ADMIN, pool),)))
    refused(Kind.NOT_FOUND, "permissions.poolId", lambda: token(world, permissions=((Permission.ADMIN, "x"),)))
    made = token(world, by=ALICE, permissions=((Permission.CREATE_SESSION, pool),))
    own = token(world, "b", by=ALICE, user_id="alice")
    assert own.user_id == "alice" and not own.is_admin
    assert [t.id for t in world.controller.tokens(ALICE)] == [made.id, own.id]
    assert world.controller.tokens(BOB) == []
    refused(Kind.NOT_FOUND, "id", lambda: world.do(RevokeToken(made.id), BOB))
    world.do(RevokeToken(made.id), ALICE)


@pytest.mark.parametrize("secret", ["", "A" * 64, "a" * 63, "g" * 64])
def test_the_core_takes_only_hashes(world: World, secret: str) -> None:
    error = refused(Kind.INVALID, "secret", lambda: world.do(CreateToken("x", secret)))
    assert not secret or secret not in str(error)


def test_one_secret_one_token(world: World) -> None:
    token(world)
    refused(Kind.CONFLICT, "secret", lambda: token(world))


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        (lambda pool: (NodeType("", pool, GPUS),), "[0].name"),
        (lambda pool: (NodeType("n", pool, GPUS), NodeType("n", pool, GPUS)), "[1].name"),
        (lambda pool: (NodeType("n", pool, ()),), "[0].gpus"),
        (lambda pool: (NodeType("n", pool, GPUS, max_workers=-1),), "[0].maxWorkers"),
        (lambda pool: (NodeType("n", pool, GPUS, labels={"a": 1}),), "[0].labels.a"),
    ],
)
def test_bad_node_types(world: World, nodes: Callable[[str], Any], field: str) -> None:
    pool = world.pool()
    refused(Kind.INVALID, field, lambda: world.do(DeclareNodeTypes(nodes(pool))))
    refused(Kind.NOT_FOUND, "[0].poolId", lambda: world.do(DeclareNodeTypes((NodeType("n", "x", GPUS),))))
    refused(Kind.FORBIDDEN, "", lambda: world.do(DeclareNodeTypes(()), ALICE))
    assert world.controller.node_types() == ()


def test_policies_are_chosen_per_pool_by_name_or_id(make_world: Callable[..., World]) -> None:
    world = make_world(policies={"tight": "best_fit", "id-5": "best_fit"})
    goes_to_the_small_one = {}
    for name in ("tight", "by id", "plain"):
        pool = world.pool(name)
        world.agent(pool, 100)
        small = world.agent(pool, 50)
        goes_to_the_small_one[name] = world.session(world.request(pool, 50)).agent_id == small
    assert goes_to_the_small_one == {"tight": True, "by id": True, "plain": False}


@pytest.mark.parametrize(
    "settings",
    [
        {"missing_after_s": 0},
        {"removed_after_s": float("nan")},
        {"history_s": -1},
        {"granted_percent": 0},
        {"granted_percent": 101},
        {"story_events": -1},
        {"default_queue_policy": "lifo"},
        {"queue_policies": {"p": "lifo"}},
    ],
)
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="accepted"):
        Settings(**settings)


def test_bad_placement_policy(make_world: Callable[..., World]) -> None:
    for settings in ({"default_policy": "worst"}, {"policies": {"p": "worst"}}):
        with pytest.raises(ValueError, match="best_fit, dot_prod, fgd, first_fit"):
            make_world(**settings)


def test_what_is_no_command(world: World) -> None:
    with pytest.raises(TypeError, match="no command"):
        world.do(Command())
