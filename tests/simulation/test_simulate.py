"""`juice-sim simulate`: scenarios, traces and synthetic loads in virtual time."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fake_cluster.simulation.plan import GIB
from fake_cluster.simulation.simulate import PoolSize, Simulation, of_trace, simulate, synthetic
from fake_cluster.simulation.tally import Tally
from fake_cluster.traces import TraceJob
from juice_sim.cli.main import main


@pytest.mark.parametrize("name", ["quickstart", "contention"])
def test_a_shipped_scenario_holds_all_its_checks(name, tmp_path):
    assert main(["simulate", name, "--report", str(tmp_path), "--quiet"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["jobs"]["completed"] == results["jobs"]["submitted"] > 90
    assert results["sessions"]["closed"] == results["sessions"]["requested"] > 0
    assert results["sessions"]["leaked"] == 0
    assert results["invariants"]["violations"] == []
    assert results["invariants"]["checked"] >= 8
    assert results["virtual_s"] > 10
    assert results["hooks"]["epilogs"] == results["hooks"]["prologs"] >= results["sessions"]["granted"]
    rows = list(csv.DictReader((tmp_path / "jobs.csv").open()))
    assert len(rows) == results["jobs"]["submitted"]
    assert (tmp_path / "report.html").stat().st_size > 10_000


def results_of(load):
    tally = Tally(load.name, load.seed)
    simulation = Simulation(load, tally)
    simulation.run()
    results = tally.results(1.0, 1.0)
    assert simulation.done
    return results


def test_a_synthetic_load_keeps_the_gpus_as_busy_as_asked():
    results = results_of(synthetic(1500, 20, seed=3, occupancy=0.5))
    assert results["jobs"]["completed"] == 1500
    assert results["invariants"]["violations"] == []
    assert results["gpus"]["count"] == 160
    assert results["gpus"]["overcommitted_bytes"] == 0
    # Filling up and running empty take their share of the time.
    assert 0.2 < results["gpus"]["mean_vram_bytes"] / results["gpus"]["vram_bytes"] < 0.55


def test_too_much_demand_is_served_in_the_end():
    results = results_of(synthetic(200, 1, gpus=2, seed=3, occupancy=3.0, run_time=60.0))
    assert results["jobs"]["completed"] == 200
    assert results["jobs"]["requeues"] > 0
    assert results["waits"]["queue_p99_s"] > 60
    assert results["gpus"]["peak_in_use"] == 2


def test_the_same_seed_gives_the_same_results():
    first, second = (results_of(synthetic(150, 4, seed=9)) for _ in range(2))
    assert first == second
    assert results_of(synthetic(150, 4, seed=10)) != first


def test_a_trace_takes_the_times_and_sizes_that_it_says(tmp_path):
    jobs = [
        TraceJob(0.0, 100.0, 1.0, 1, None, "gold", "u", 1),
        TraceJob(10.0, 50.0, 1.0, 1, 20 * GIB, "gold", "u", 2),
        TraceJob(10.0, 50.0, 1.0, 1, 20 * GIB, "gold", "u", 3),
        TraceJob(11.0, 5.0, 1.0, 0, None, "", "u", 4),
    ]
    load = of_trace(jobs, "trace", (PoolSize("gold", 1, 2, "A100-40"),), 2)
    finished = simulate(load, tmp_path, full=False)
    assert finished.ok
    rows = {row["job_id"]: row for row in csv.DictReader((tmp_path / "jobs.csv").open())}
    assert [rows[n]["state"] for n in "1234"] == ["COMPLETED"] * 4
    assert [round(float(rows[n]["end_s"]) - float(rows[n]["start_s"])) for n in "1234"] == [100, 50, 50, 5]
    assert finished.results["gpus"]["peak_in_use"] == 2  # the slices share the second GPU
    assert finished.results["sessions"]["requested"] == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--jobs N"),
        (["no-such-scenario"], "no-such-scenario"),
        (["--jobs", "0"], "--jobs 0"),
        (["--jobs", "5", "--agents", "0"], "--agents 0"),
        (["--jobs", "5", "--occupancy", "0"], "--occupancy 0"),
        (["--jobs", "5", "--model", "Voodoo2"], "Voodoo2"),
        (["--jobs", "5", "--policy", "worst_fit"], "worst_fit"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(options, said, capsys, tmp_path):
    assert main(["simulate", *options, "--report", str(tmp_path / "report")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_shipped_command_reads_a_trace_file(tmp_path, capsys):
    trace = tmp_path / "log.csv"
    trace.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "pod-1,2000,1024,1,1000,,LS,Succeeded,0,100,0\n"
        "pod-2,2000,1024,1,500,,LS,Succeeded,10,60,10\n"
    )
    report = Path(tmp_path / "report")
    assert main(["simulate", str(trace), "--agents", "2", "--report", str(report), "--quiet"]) == 0
    results = json.loads((report / "results.json").read_text())
    assert results["jobs"]["completed"] == 2
    assert "COMPLETED" in capsys.readouterr().out
