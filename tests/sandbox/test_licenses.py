"""What licenses there should be, without any Slurm: numbers from what controller and Slurm said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from juice_sim.slurm_licenses.capacity import HeldJob, free, jobs_with_sessions, shapes, targets
from juice_sim.slurm_licenses.install import job_submit_lua
from juice_sim.slurm_licenses.names import PoolShape, conf_line, license_names, parse_licenses, table_text
from juice_sim.wire_types import Agent, Gpu, Pool, Session, SessionGpu

GIB = 1 << 30
POOL = Pool(id="p1", name="test")


def agent(*sizes_gib: float, state: str = "active", taken: dict[str, list[tuple[int, float]]] | None = None, **fields):
    """An agent with these GPUs; `taken` maps a session's id to (GPU, GiB) pairs."""
    sessions = [
        Session(id=name, gpus=[SessionGpu(index=index, vram_required=int(gib * GIB)) for index, gib in parts])
        for name, parts in (taken or {}).items()
    ]
    gpus = [Gpu(index=index, vram=int(size * GIB)) for index, size in enumerate(sizes_gib)]
    return Agent(pool_id="p1", state=state, gpus=gpus, sessions=sessions, **fields)


def shape_of(*agents: Agent) -> PoolShape:
    return shapes([POOL], agents, {})["p1"]


def test_licenses_are_named_after_pools_and_never_the_same_for_two():
    named = license_names([("11111111-aaaa", "test"), ("22222222-bbbb", "a b"), ("33333333-cccc", "a,b")])
    assert named == {
        "11111111-aaaa": "juice_test",
        "22222222-bbbb": "juice_a_b_22222222",
        "33333333-cccc": "juice_a_b_33333333",
    }


def test_an_empty_pool_has_all_its_gpus_places_and_gibibytes():
    agents = [agent(24, 24), agent(24, 24)]
    counts = free(shape_of(*agents), agents)
    assert counts["juice_test"] == 4
    assert counts["juice_test_x2"] == 2
    assert counts["juice_test_vram_gib"] == 96
    assert [counts[f"juice_test_fit_{gib}"] for gib in (1, 12, 13, 24, 25)] == [96, 8, 4, 4, 4]  # 24 is 96 % of 25


def test_a_sum_that_does_not_fit_anywhere_gives_no_place():
    agents = [agent(24, 24, taken={"a": [(0, 20)]}), agent(24, 24, taken={"b": [(1, 20)]})]
    counts = free(shape_of(*agents), agents)
    assert (counts["juice_test"], counts["juice_test_x2"]) == (2, 0)
    assert counts["juice_test_vram_gib"] == 56
    assert (counts["juice_test_fit_4"], counts["juice_test_fit_5"], counts["juice_test_fit_24"]) == (14, 8, 2)


@pytest.mark.parametrize("away", [{"state": "missing"}, {"state": "disabled"}, {"taints": {"team": "ml"}}])
def test_agents_that_cannot_serve_everyone_give_nothing(away):
    shape = shape_of(agent(24))
    assert set(free(shape, [agent(24, **away)]).values()) == {0}


def test_a_pool_whose_agents_are_gone_keeps_its_licenses():
    known = shapes([POOL], [agent(24, 24)], {})
    later = shapes([POOL], [], known)
    assert later == known
    assert set(targets(later.values(), [], []).values()) == {0}


def test_a_job_with_its_session_keeps_its_license_and_one_that_asks_is_promised_what_is_free():
    agents = [agent(24, 24, taken={"s7": [(0, 24)]})]
    held = {"juice_test": 1, "juice_test_vram_gib": 24}
    served = jobs_with_sessions(agents, {"s7": "cluster/7/0"}, "cluster")
    assert served == {7}
    totals = targets([shape_of(*agents)], agents, [HeldJob(7, held)])
    # Slurm subtracts what jobs 7 and 8 hold: nothing is left, for the free GPU is promised to job 8.
    assert totals["juice_test"] - 2 == 0
    assert totals["juice_test_vram_gib"] - 48 == 0


@pytest.mark.parametrize("name", ["", "7", "cluster/7", "other/7/0", "cluster/x/0", "a/cluster/7/0"])
def test_a_session_of_another_name_is_nobodys_license(name):
    assert jobs_with_sessions([agent(24, taken={"s": [(0, 24)]})], {"s": name}, "cluster") == set()


def test_the_table_promises_only_what_slurm_knows():
    shape = replace(shape_of(agent(24, 24, 24)), license="juice_test")
    names = dict.fromkeys(shape.names(), 1)
    assert table_text([shape], names).splitlines()[1] == "test\tp1\tjuice_test\t3\t24\t24\t25"
    del names["juice_test_x3"], names["juice_test_fit_20"]
    assert table_text([shape], names).splitlines()[1] == "test\tp1\tjuice_test\t2\t24\t24\t19"
    del names["juice_test"]
    assert len(table_text([shape], names).splitlines()) == 1


def test_the_line_for_slurm_conf_declares_all_of_them():
    shape = shape_of(agent(2, 2))
    assert conf_line([shape]) == (
        "Licenses=juice_test:1000000,juice_test_x2:1000000,juice_test_vram_gib:1000000,juice_test_fit_1:1000000,"
        "juice_test_fit_2:1000000"
    )
    assert conf_line([PoolShape("p", "empty", "juice_empty")]) == ""


@pytest.mark.parametrize(
    ("text", "counts"),
    [("(null)", {}), ("", {}), ("a:2,b", {"a": 2, "b": 1}), ("a:1,a:2", {"a": 3}), ("a@s:2", {"a@s": 2})],
)
def test_licenses_as_squeue_prints_them(text, counts):
    assert parse_licenses(text) == counts


def test_the_script_names_its_table_and_nothing_else_changes(tmp_path):
    text = job_submit_lua(tmp_path / "t.tsv")
    assert f'local TABLE = "{tmp_path}/t.tsv"' in text
    assert "@TABLE@" not in text
    with pytest.raises(ValueError, match="absolute path"):
        job_submit_lua(tmp_path / 'a"b')
