"""The report: self-contained, safe with hostile names, bounded in size; results.json follows its contract."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_history import GIB, START, Made, large

from fake_cluster.checks import run_checks
from fake_cluster.history import History, Noted
from fake_cluster.history_views import Views
from fake_cluster.report import embed_json, render_report, write_report
from fake_cluster.report_data import MAX_JOB_ROWS, MAX_POINTS, gpu_rows, report_data, thin
from fake_cluster.results import compute_results, percentile, vram_timeline, write_json
from fake_cluster.scenario import CheckSpec, JobGroup, PoolSpec, Scenario
from fake_cluster.slurm.interface import JobState
from juice_sim.core.model import AgentState

SCENARIO = Scenario("made", [PoolSpec("test")], [JobGroup("g")], checks=CheckSpec(all_completed=True))
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"


def page(history: History) -> str:
    views = Views(history)
    checks = run_checks(views, SCENARIO)
    return render_report(views, checks, compute_results(views, checks))


def test_the_page_loads_nothing() -> None:
    html = page(large(100))
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=[\"'](?!data:,)", html)
    assert "http://" not in html and "https://" not in html and "@import" not in html
    assert "default-src 'none'" in html


def test_hostile_names_stay_text() -> None:
    made = Made()
    made.agent(HOSTILE)
    made.ran(1, 1.0, 2.0, JobState.FAILED, group=HOSTILE)
    made.entries.append(Noted(START + 1, HOSTILE))
    html = page(made.history())
    assert "alert(1)</script>" not in html and "<img src=x" not in html
    assert html.count("<script") == 2 and html.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert data is not None and json.loads(data[1])["charts"]["groups"] == [HOSTILE]


def test_json_inside_a_script_element() -> None:
    text = str(embed_json({"a": "</script>\u2028&"}))
    assert "<" not in text and "\u2028" not in text and json.loads(text) == {"a": "</script>\u2028&"}


def test_thousands_of_jobs_make_no_huge_page(tmp_path: Path) -> None:
    history = large(6000, 128, load=0.7)
    views = Views(history)
    checks = run_checks(views, SCENARIO)
    results = compute_results(views, checks)
    write_report(tmp_path / "report.html", views, checks, results)
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    data = report_data(views, checks, results)
    assert len(data["job_rows"]) == MAX_JOB_ROWS and data["jobs_total"] == 6000
    assert all(len(points) <= MAX_POINTS + 4 for points in data["charts"]["jobs"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_thinning_keeps_the_extremes() -> None:
    points = [(float(number), 1000.0 if number == 777 else float(number % 7)) for number in range(10_000)]
    kept = thin(points, 400)
    assert len(kept) <= 410 and (777.0, 1000.0) in kept and kept[0] == points[0] and kept[-1] == points[-1]
    assert thin(points[:10], 400) == points[:10]


def test_slices_lie_beside_each_other_on_their_gpu() -> None:
    made = Made()
    made.agent(vram=24 * GIB)
    for number, (start, end) in enumerate([(1.0, 9.0), (2.0, 5.0), (3.0, 9.0), (6.0, 9.0)]):
        made.session(f"s{number}xxxxxxx", number, start, end, vram=8 * GIB)
    (row,) = gpu_rows(Views(made.history()), [])["rows"]
    offsets = {segment[7][:2]: segment[2] for segment in row["segments"]}
    assert offsets == {"s0": 0.0, "s1": 8.0, "s2": 16.0, "s3": 8.0}


def test_an_agent_that_comes_back_is_counted_once() -> None:
    made = Made()
    made.agent("a1", 4)
    made.agent("a2", 4)
    made.agent_state("a1", AgentState.MISSING, 5.0)
    made.agent_state("a1", AgentState.CLOSED, 8.0)
    made.agent("a1", 4, at=9.0)
    views = Views(made.history())
    assert compute_results(views, [])["gpus"]["count"] == 8
    assert [present for _, _, _, present in vram_timeline(views.controller_events)] == [4, 8, 4, 4, 8]


def test_results_of_a_run(tmp_path: Path) -> None:
    history = large(50)
    views = Views(history)
    write_json(tmp_path / "results.json", compute_results(views, run_checks(views, SCENARIO)))
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["jobs"]["submitted"] == results["jobs"]["completed"] == 50
    assert results["sessions"] == {"requested": 50, "granted": 50, "denied": 0, "closed": 50, "leaked": 0}
    assert results["gpus"]["vram_bytes"] == 8 * 24 * GIB >= results["gpus"]["peak_vram_bytes"] > 0
    assert results["waits"]["prolog_p50_s"] <= results["waits"]["prolog_p99_s"] <= 0.6
    assert results["invariants"]["checked"] == len(results["invariants"]["names"])


@pytest.mark.parametrize(
    "values, percent, expected",
    [([], 50, None), ([3.0], 99, 3.0), ([1, 2, 3, 4], 50, 2), (range(1, 101), 99, 99)],
)
def test_percentiles(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    history = large(20)
    written = History(tmp_path / "history.jsonl")
    for entry in history.entries:
        written.add(entry)
    written.close()
    again = History.load(tmp_path / "history.jsonl")
    assert again.entries == history.entries
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"type":"RunEn')  # the run was killed while it wrote
    assert History.load(tmp_path / "history.jsonl").entries == history.entries
    (tmp_path / "bad.jsonl").write_text('{"type":"Unknown"}\n{"type":"Noted"}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:1: unknown kind"):
        History.load(tmp_path / "bad.jsonl")
