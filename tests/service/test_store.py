"""The durable log: opening, refusing, folding, compacting, failing."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid

import msgspec
import pytest

from juice_sim import service as service_module
from juice_sim.core.commands import CloseSession, CreatePool, RequestSession
from juice_sim.core.controller import ADMIN, Controller
from juice_sim.core.model import GpuRequirement, Requirements
from juice_sim.core.settings import Settings
from juice_sim.server import ControllerServer, ServerError
from juice_sim.service import Service, Unavailable
from juice_sim.store import Batch, EventStore, StoreError


def open_service(directory):
    return Service(EventStore(directory), Settings(), lambda: str(uuid.uuid4()))


def event(number):
    return msgspec.Raw(
        msgspec.json.encode({"event": "PoolCreated", "at": 1.0, "pool_id": f"p{number}", "name": f"n{number}"})
    )


def test_batches_are_numbered_without_gaps(tmp_path):
    store = EventStore(tmp_path)
    assert store.append(Batch([event(1), event(2)])) == 2
    assert store.append(Batch([event(3)])) == 3
    store.close()
    store = EventStore(tmp_path)
    assert store.last_seq == 3
    assert [record.seq for record in store.records(1, 10)] == [2, 3]
    assert store.first_seq() == 1
    store.close()


def test_second_owner_is_refused_with_the_pid_of_the_first(tmp_path):
    import os

    store = EventStore(tmp_path)
    with pytest.raises(StoreError, match=rf"in use by process {os.getpid()}"):
        EventStore(tmp_path)
    store.close()
    EventStore(tmp_path).close()


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 100, b"\x00" * 8192, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_edda_1190_file_that_is_no_database(tmp_path, content):
    (tmp_path / "controller.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"controller\.db cannot be read"):
        EventStore(tmp_path)
    (tmp_path / "controller.db").unlink()
    EventStore(tmp_path).close()  # the directory was given up


def test_empty_file_is_a_fresh_start(tmp_path):
    (tmp_path / "controller.db").touch()
    store = EventStore(tmp_path)
    assert store.last_seq == 0
    store.close()


def test_database_of_somebody_else(tmp_path):
    other = sqlite3.connect(tmp_path / "controller.db")
    other.execute("CREATE TABLE batch (x)")
    other.commit()
    other.close()
    with pytest.raises(StoreError, match="not one of juice-sim"):
        EventStore(tmp_path)


def test_database_of_a_newer_version(tmp_path):
    EventStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "controller.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="format 99"):
        EventStore(tmp_path)


@pytest.mark.parametrize(
    "statement", ["DELETE FROM batch WHERE last = 2", "UPDATE batch SET body = x'7b' WHERE last = 2"]
)
def test_damaged_log_is_an_error_not_a_guess(tmp_path, statement):
    store = EventStore(tmp_path)
    for number in range(3):
        store.append(Batch([event(number)]))
    store.close()
    db = sqlite3.connect(tmp_path / "controller.db")
    db.execute(statement)
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="cannot be read"):
        open_service(tmp_path)


def test_torn_pages_are_noticed(tmp_path):
    store = EventStore(tmp_path)
    for number in range(2000):
        store.append(Batch([event(number)]))
    store.close()
    path = tmp_path / "controller.db"
    content = bytearray(path.read_bytes())
    content[8192:20480] = bytes(12288)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="restore it from a copy"):
        open_service(tmp_path)


def test_directory_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="give a directory"):
        EventStore(tmp_path / "file")


def run(coroutine):
    return asyncio.run(coroutine)


def sessions(service, count):
    pool = service.command(CreatePool("p"), ADMIN)
    ids = [service.command(RequestSession(Requirements((GpuRequirement(),), pool.id)), ADMIN) for _ in range(count)]
    for session_id in ids[::2]:
        service.command(CloseSession(session_id), ADMIN)
    return ids


def test_a_new_service_is_as_the_old_one_was(tmp_path):
    async def first():
        service = open_service(tmp_path)
        sessions(service, 20)
        await service.settled()
        state = service.reader.snapshot()
        await service.stop()
        return state

    async def second():
        service = open_service(tmp_path)
        state = service.reader.snapshot()
        service.reader.validate()
        await service.stop()
        return state

    assert run(first()) == run(second())


def test_compaction_keeps_state_and_the_latest_events(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "SNAPSHOT_EVERY", 50)
    monkeypatch.setattr(service_module, "KEEP_EVENTS", 30)

    async def fill():
        service = open_service(tmp_path)
        ids = sessions(service, 100)
        await service.settled()
        while service._compacting is not None:
            await asyncio.shield(service._compacting)
        oldest = await service.oldest_seq()
        more = service.command(RequestSession(Requirements((GpuRequirement(),))), ADMIN)
        await service.settled()
        state = service.reader.snapshot()
        told = [type(e).__name__ for e in await service.story(ids[0])]
        await service.stop()
        return state, oldest, more, told

    state, oldest, more, told = run(fill())
    assert told == ["SessionQueued", "SessionClosed"]

    async def again():
        service = open_service(tmp_path)
        assert service.reader.snapshot() == state
        assert service.reader.session(more).state.value == "queued"
        last = service.published_seq
        records = await service.records(last - 5)
        await service.stop()
        return [record.seq for record in records], last

    seqs, last = run(again())
    assert seqs == list(range(last - 4, last + 1))
    assert 1 <= oldest <= last


def test_settled_means_durable(tmp_path):
    async def go():
        service = open_service(tmp_path)
        pool = service.command(CreatePool("p"), ADMIN)
        await service.settled()
        with service._store.reading() as other:
            bodies = b"".join(record.body for record in other.records(0, 10))
        await service.stop()
        return pool.id.encode() in bodies

    assert run(go())


def test_log_that_cannot_be_written_undoes_what_was_not_durable(tmp_path, monkeypatch):
    async def go():
        service = open_service(tmp_path)
        service.command(CreatePool("kept"), ADMIN)
        await service.settled()
        before = service.reader.snapshot()
        real = service._store.append
        full = True

        def append(batch):
            if full:
                raise sqlite3.OperationalError("database or disk is full")
            return real(batch)

        monkeypatch.setattr(service._store, "append", append)
        service.command(CreatePool("lost"), ADMIN)
        with pytest.raises(Unavailable, match="disk is full"):
            await service.settled()
        assert service.reader.snapshot() == before
        full = False
        service.command(CreatePool("lost"), ADMIN)
        await service.settled()
        names = [pool.name for pool in service.reader.pools()]
        await service.stop()
        return names

    assert run(go()) == ["kept", "lost"]


def test_restart_gives_known_agents_their_full_time(start, caller_of, agent_type, tmp_path):
    first = start(tmp_path / "d")
    admin = caller_of(first.url, first.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    agent = agent_type(admin, pool)
    agent.register()
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    first.stop()
    second = start(tmp_path / "d", clock=lambda: __import__("time").time() + 3600)
    admin = caller_of(second.url, second.admin_token)
    assert admin.ok("GET", f"/v1/agent/{agent.id}")["state"] == "active"
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "assigned"


def test_port_in_use_is_one_clear_line(server):
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(ServerError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*port 0"):
        ControllerServer(None, port=port).start()


def test_controller_is_the_fold_of_its_log(tmp_path):
    async def go():
        service = open_service(tmp_path)
        sessions(service, 10)
        await service.settled()
        folded = service_module.fold(service._store, Settings(), lambda: "x")
        same = folded.controller.snapshot() == service.reader.snapshot()
        await service.stop()
        return same, folded.controller

    same, controller = run(go())
    assert same
    assert isinstance(controller, Controller)
