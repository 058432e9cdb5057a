"""The placement study on a small made trace: against an oracle that scores every node anew, and its promises."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from fake_cluster.bad_input import BadInput  # noqa: E402
from fake_cluster.compare.cluster import Cluster, kind_of  # noqa: E402
from fake_cluster.compare.fragmentation import Fragmentation  # noqa: E402
from fake_cluster.compare.go_random import GoRandom  # noqa: E402
from fake_cluster.compare.policies import POLICIES, PUBLISHED, policies_named  # noqa: E402
from fake_cluster.compare.published import PUBLISHED as FIGURES  # noqa: E402
from fake_cluster.compare.run import run_policy  # noqa: E402
from fake_cluster.compare.study import as_json, findings, run_study  # noqa: E402
from fake_cluster.compare.workload import (  # noqa: E402
    Shape,
    Workload,
    draw_arrivals,
    load_openb,
    make_workload,
    typical_tasks,
)
from fake_cluster.traces.openb import OpenbNode, OpenbTask  # noqa: E402

from .conftest import TASKS  # noqa: E402

NAMES = [policy.name for policy in PUBLISHED]


@pytest.fixture(scope="module")
def workload(made_trace: Path) -> Workload:
    return load_openb(made_trace, TASKS)


def test_go_random_draws_what_go_draws() -> None:
    """What `rand.Seed(1)` and ten times `rand.Intn(100)` print in every introduction to Go."""
    source = GoRandom(1)
    assert [source.intn(100) for _ in range(10)] == [81, 87, 47, 59, 81, 18, 25, 40, 56, 0]
    order = GoRandom(42).permutation(500)
    assert sorted(order) == list(range(500)) and order != list(range(500))
    items = list(range(500))
    GoRandom(42).shuffle(items)
    assert sorted(items) == list(range(500)) and items not in (list(range(500)), order)
    assert GoRandom(0).int63() == GoRandom(89482311).int63(), "0 stands for this seed"


def plain_fragmentation(typical: dict[Shape, float], model: str, cpu: int, gpus: list[int]) -> float:
    """F of one node, from its definition."""
    total = sum(gpus)
    out = 0.0
    for task, share in typical.items():
        fits = (
            task.gpus > 0
            and (not task.models or model in task.models)
            and cpu >= task.cpu
            and sum(left >= task.milli for left in gpus) >= task.gpus
        )
        out += share * (sum(left for left in gpus if left < task.milli) if fits else total)
    return out


def plain_score(policy: str, shape: Shape, cluster: Cluster, node: int, typical: dict[Shape, float]) -> float:
    """The score of one node before it is cut to a whole number, from the policy's definition."""
    cpu = int(cluster.cpu[node])
    gpus = [int(left) for left in cluster.gpu[node] if left >= 0]
    if policy == "BestFit":
        over = 0.5 * (cpu - shape.cpu) / 128_000 + 0.5 * (sum(gpus) - shape.gpu_total) / 8000
        return 100 * (1 - over)
    if policy == "DotProd":
        product = cpu / 128_000 * (shape.cpu / 128_000) + sum(gpus) / 8000 * (shape.gpu_total / 8000)
        return 100 * (1 - product / 2)
    if policy == "FGD":
        before = plain_fragmentation(typical, cluster.nodes.models[node], cpu, gpus)
        places = [[at] for at, left in enumerate(gpus) if left >= shape.milli] if shape.fractional else None
        if places is None:
            places = [[at for at, left in enumerate(gpus) if left == 1000][: shape.gpus]]
        scores = []
        for chosen in places:
            after = [left - shape.milli * (at in chosen) for at, left in enumerate(gpus)]
            now = plain_fragmentation(typical, cluster.nodes.models[node], cpu - shape.cpu, after)
            scores.append(100 / (1 + math.exp(-(before - now) / 1000)))
        return max(scores)
    if not shape.gpus:
        return 0
    if policy == "GpuClustering":
        kinds = cluster.kinds[node]
        same, other = (75 if len(kinds) == 1 else 50), (0 if kinds else 25)
        base = same if kind_of(shape) in kinds else other
        return base + 25 * (8000 - sum(gpus)) // 8000
    assert policy == "GpuPacking"
    if all(left == 1000 for left in gpus):
        return 33 - len(gpus)
    room = sorted(left for left in gpus if left >= shape.milli)[: shape.gpus]
    fresh = sum(left == 1000 for left in room)
    return 50 - fresh if fresh else max(50, 100 - sum(left * 100 // 1000 for left in room) // 10)


@pytest.mark.parametrize("policy", [name for name in NAMES if name != "Random"])
def test_each_decision_agrees_with_scoring_every_node_from_the_definition(workload: Workload, policy: str) -> None:
    """Scores are kept and only renewed where something changed; the oracle keeps nothing."""
    arrivals = draw_arrivals(workload, 7)
    typical = typical_tasks(workload.tasks)
    cluster = Cluster(arrivals.nodes)
    chosen = POLICIES[policy](cluster, Fragmentation(typical, arrivals.nodes.models), random.Random(0))
    placed = failed = 0
    for shape in arrivals.tasks:
        rooms = [node for node in range(len(cluster.cpu)) if bool(cluster.fits(shape, np.array([node]))[0])]
        if not rooms:
            failed += 1
            continue
        given = chosen.scores(shape, np.array(rooms)).tolist()
        for node, score in zip(rooms, given, strict=True):
            exact = plain_score(policy, shape, cluster, node, typical)
            # Sums of shares differ in the last bit by their order, which cuts 50 to 49 where nothing is gained or lost.
            assert math.floor(exact - 1e-9) <= score <= math.floor(exact + 1e-9)
        best = max(zip(rooms, given, strict=True), key=lambda pair: (pair[1], -pair[0]))[0]
        gpus = chosen.gpus(shape, best) if shape.gpus else []
        if shape.fractional and policy != "FGD":
            assert cluster.gpu[best, gpus[0]] == min(left for left in cluster.gpu[best] if left >= shape.milli)
        cluster.place(shape, best, gpus)
        placed += 1
    run = run_policy(workload, policy, 7)
    assert (run.placed, sum(run.failed.values())) == (placed, failed) and failed > 5
    assert run.points[-1].allocated == pytest.approx(100 * cluster.used_milli / arrivals.nodes.gpu_total, abs=2)


@pytest.mark.parametrize("policy", [*NAMES, "FirstFit"])
def test_nothing_is_over_committed_and_the_same_seed_gives_the_same_run(workload: Workload, policy: str) -> None:
    first, again, other = (run_policy(workload, policy, seed) for seed in (1, 1, 2))
    assert (first.points, first.failed) == (again.points, again.failed)
    assert first.points != other.points
    assert first.placed + sum(first.failed.values()) == first.tasks
    for point in first.points:
        assert 0 <= point.allocated <= min(100, point.arrived + 1) and 0 <= point.fragmented <= 100.01
        assert point.fragmented <= 100 - point.allocated + 1, "only what is idle can be a fragment"


def test_place_refuses_what_does_not_fit(workload: Workload) -> None:
    cluster = Cluster(workload.nodes)
    half = Shape(1000, 10, 1, 600)
    cluster.place(half, 0, [3])
    with pytest.raises(ValueError, match="do not fit"):
        cluster.place(half, 0, [3])
    with pytest.raises(ValueError, match="does not fit"):
        cluster.place(Shape(10**7, 10, 1, 500), 0, [0])
    assert cluster.used_milli == 600 and cluster.changes == [0]


def test_arrivals_are_all_tasks_then_drawn_ones_up_to_the_ratio(workload: Workload) -> None:
    arrivals = draw_arrivals(workload, 42)
    total = sum(task.gpu_total for task in arrivals.tasks)
    capacity = workload.nodes.gpu_total
    assert total <= 1.3 * capacity + 7000 and total > 1.3 * capacity - 8000
    recorded = Counter(workload.tasks)
    assert Counter(arrivals.tasks[: len(workload.tasks)]) == recorded, "all of them, shuffled"
    assert set(arrivals.tasks) <= set(recorded)
    assert sorted(arrivals.nodes.names) == list(workload.nodes.names) != list(arrivals.nodes.names)
    few = draw_arrivals(workload, 42, ratio=0.5)
    assert sum(task.gpu_total for task in few.tasks) <= 0.5 * capacity
    assert not Counter(few.tasks) - recorded


def test_typical_tasks_are_the_commonest_up_to_the_threshold() -> None:
    tasks = [Shape(1, memory, 1, 500) for memory in range(60)] + [Shape(2, 0, 1, 1000)] * 30 + [Shape(3, 0, 0, 0)] * 10
    assert typical_tasks(tasks, 0.6) == {Shape(1, 0, 1, 500): 1.0}
    typical = typical_tasks(tasks, 0.9)
    assert typical == {Shape(1, 0, 1, 500): 60 / 90, Shape(2, 0, 1, 1000): 30 / 90}


def test_fragmentation_of_many_states_is_that_of_each(workload: Workload) -> None:
    chance = random.Random(3)
    typical = typical_tasks(workload.tasks)
    nodes = workload.nodes
    many = Fragmentation(typical, nodes.models)
    at = np.array([chance.randrange(len(nodes.names)) for _ in range(200)])
    cpu = np.array([chance.randrange(0, 30_000) for _ in at])
    gpu = np.array([[chance.choice((0, 200, 500, 1000)) if old >= 0 else -1 for old in nodes.gpu[node]] for node in at])
    found = many.of(at, cpu, gpu)
    for row, node in enumerate(at.tolist()):
        gpus = [int(left) for left in gpu[row] if left >= 0]
        assert found[row] == pytest.approx(plain_fragmentation(typical, nodes.models[node], int(cpu[row]), gpus))


def test_a_model_that_a_task_names_is_kept_to() -> None:
    nodes = [OpenbNode("a", 64_000, 10_000, 2, "T4"), OpenbNode("b", 64_000, 10_000, 2, "A10")]
    tasks = [OpenbTask(2 + number, f"t{number}", 1000, 100, 1, 1000, ("A10",)) for number in range(4)]
    for policy in POLICIES:
        run = run_policy(make_workload(nodes, tasks), policy, 1, ratio=1.0)
        assert run.placed == 2 and run.failed == {"1 GPU": 2}, policy


def test_several_processes_give_what_one_gives(workload: Workload) -> None:
    seen: list[int] = []
    alone = run_study(workload, "x.csv", ["BestFit", "FGD"], [1, 2], 1.3)
    both = run_study(workload, "x.csv", ["BestFit", "FGD"], [1, 2], 1.3, 2, lambda run, done, total: seen.append(done))
    assert sorted(seen) == [1, 2, 3, 4]
    for one, other in zip(alone.summaries, both.summaries, strict=True):
        assert one.levels == other.levels and [run.points for run in one.runs] == [run.points for run in other.runs]


def test_figures_for_json_have_median_least_and_most(workload: Workload) -> None:
    study = run_study(workload, TASKS, ["BestFit", "Random"], range(3), 1.3)
    figures = as_json(study)
    assert list(figures) == ["BestFit", "Random"]
    row = figures["BestFit"]
    assert isinstance(row, dict)
    values = sorted(run["allocation_100"] for run in row["runs"])
    assert [row["allocation_100_min"], row["allocation_100_median"], row["allocation_100_max"]] == values
    assert {"allocation_130_median", "allocation_130_min", "allocation_130_max", "cpu_s"} <= set(row)
    assert findings(study) == [], "nothing is published for a made trace"


def test_findings_tell_figures_outside_the_published_spread(workload: Workload) -> None:
    study = run_study(workload, "openb_pod_list_default.csv", NAMES, [1], 1.3)
    found = findings(study)
    assert len(found) == 2 * len(NAMES) + 6, "two levels each, and the order of the policies"
    assert not all(finding.ok for finding in found)
    assert findings(run_study(workload, "openb_pod_list_default.csv", ["FGD"], [1], 1.2)) == []
    assert set(FIGURES["openb_pod_list_cpu050"]) == set(NAMES)


def test_names_of_policies() -> None:
    assert policies_named("all") == NAMES
    assert policies_named("fgd, bestfit,FirstFit") == ["FGD", "BestFit", "FirstFit"]
    for text in ("", "fgd,fgd", "WorstFit"):
        with pytest.raises(ValueError, match="accepted: all, or some of"):
            policies_named(text)


def test_bad_trace_files_are_told(made_trace: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load_openb(made_trace, "missing.csv")
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,9,T4\n", encoding="utf-8")
    with pytest.raises(BadInput, match="has 9 GPUs"):
        load_openb(made_trace, TASKS, str(tmp_path / "nodes.csv"))
    (tmp_path / "nodes.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,0,\nm,x,1,1,T4\n", encoding="utf-8"
    )
    with pytest.raises(BadInput, match="no node has a GPU"):
        load_openb(made_trace, TASKS, str(tmp_path / "nodes.csv"))
    (tmp_path / "nodes.csv").write_text("node,gpus\n", encoding="utf-8")
    with pytest.raises(BadInput, match="no column sn"):
        load_openb(made_trace, TASKS, str(tmp_path / "nodes.csv"))
