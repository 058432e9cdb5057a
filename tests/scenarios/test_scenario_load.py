"""Scenario files: what is read, and that each mistake is told with file, line and key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_cluster.scenario_load import BadInput, find_scenario, load_scenario, parse_scenario, shipped
from fake_cluster.scenario_schema import json_schema, markdown
from fake_cluster.scenario_workload import array_size, script_tasks, submissions

GIB = 1024**3
LEAST = "name: x\npools:\n- name: test\njobs:\n- name: j\n"


def test_the_least_scenario_has_defaults() -> None:
    scenario = parse_scenario(LEAST)
    assert scenario.pools[0].agents == 1 and scenario.pools[0].model == "A10"
    assert scenario.jobs[0].count == 1 and scenario.jobs[0].run_time.seconds == 1.0
    assert scenario.slurm.cred_expire == 5 and scenario.controller.auth and scenario.time_limit == 300
    assert scenario.text == LEAST


def test_everything_that_can_be_said() -> None:
    scenario = parse_scenario(
        """
name: full
description: all keys
seed: 7
time_limit: 2m
pools:
- {name: train, agents: 2, gpus: 4, model: A100-80, vram: 40GiB, labels: {zone: a}, taints: {team: x}, max_agents: 3}
- {name: infer, policy: best_fit, min_agents: 1}
controller: {auth: true, quirks: [open-source, -no-extensions], missing_after: 3, removed_after: 10s}
slurm: {nodes: 3, cpus_per_node: 8, cred_expire: 6, prolog_epilog_timeout: 30, epilog_kill_probability: 0.1,
  version: "24.11", licenses: "juice_test:8"}
hooks: {wait: 4, session_file_wait: 5, reconcile_every: 0, settings: {JUICE_LOG: /dev/null}}
jobs:
- {name: a, count: 5, pool: train, gpu_count: 2, arrival: 3, run_time: 500ms, expect: COMPLETED}
- {name: b, pool: infer, vram: 2.5, arrival: {process: poisson, rate: 2},
  run_time: {distribution: lognormal, median: 2}}
- {name: c, het: [{pool: train}, {pool: infer, vram: 1}], expect: [COMPLETED, CANCELLED]}
- {name: d, array: 0-9%3, pool: infer, arrival: {process: burst, size: 2, every: 3}}
- {name: e, interactive: true, pool: infer, arrival: {process: uniform, end: 9},
  run_time: {distribution: uniform, low: 1, high: 2}}
- name: f
  requeue: false
  env: {A: 1}
  options: [--comment=x]
  script: |
    #!/bin/sh
    #SBATCH --juice-pool=train --juice-gpu-count=2
    #SBATCH --array=1-4
    sleep "$JUICE_SIM_RUN_TIME"
faults:
- {kind: agent_dies, at: 3, pool: train, agent: 1, for: 4}
- {kind: agent_hangs, after: {event: session_activated, count: 5}, for: 3}
- {kind: agent_returns, at: 20, pool: train}
- {kind: controller_killed, at: 5, repeat: {every: 3, times: 4}}
- {kind: replies, action: status, status: 429, retry_after: 1, count: 5, at: 1}
- {kind: replies, action: drop_after, method: POST, path: /v1/request/session, probability: 0.5, at: 1, for: 5}
- {kind: token_expires, at: 9}
- {kind: scancel_in_prolog, at: 1, jobs: 3}
- {kind: slurmctld_killed, at: 6, signal: 15}
- {kind: node_fails, node: node2, at: 8, for: 5}
checks: {all_completed: true, max_requeues: 9, max_queue_wait: 30}
"""
    )
    train = scenario.pool("train")
    assert train.vram == 40 * GIB and train.may_grow_to == 3 and train.labels == {"zone": "a"}
    assert scenario.time_limit == 120 and scenario.controller.removed_after == 10
    assert [fault.kind for fault in scenario.faults][3] == "controller_killed"
    assert scenario.faults[3].when.times == 4 and scenario.faults[3].lasts == 0.5
    assert scenario.faults[4].rule == {
        "method": "*",
        "path": "/v1/",
        "action": "status",
        "status": 429,
        "retry_after": 1,
        "count": 5,
    }
    assert scenario.faults[1].when.event == "session_activated" and scenario.faults[1].when.count == 5
    assert scenario.jobs[1].ask.vram == "2.5" and scenario.jobs[2].expect == ["COMPLETED", "CANCELLED"]
    tasks = {made.group: made.tasks for made in submissions(scenario, 1)}
    assert tasks == {"a": 1, "b": 1, "c": 2, "d": 10, "e": 1, "f": 4}


@pytest.mark.parametrize(
    "text, line, words",
    [
        ("", None, ["empty"]),
        ("- a\n", 1, ["not a mapping"]),
        ("name: x\n  bad: y\n", 2, ["not valid YAML"]),
        ("a: &a [*a]\n", None, ["a", "unknown key"]),
        (LEAST + "seeds: 3\n", 6, ["seeds: unknown key (did you mean 'seed'?)"]),
        (LEAST + "seed: 1.5\n", 6, ["seed: ", "got '1.5'", "a whole number from 0 to 2147483647"]),
        (LEAST + "seed: 010\n", 6, ["seed: ", "got '010'"]),
        (LEAST + "seed: 99999999999999999999999999\n", 6, ["seed: out of range"]),
        (LEAST + "seed: 1\nseed: 2\n", 7, ["seed: given twice (first on line 6)"]),
        (LEAST + "time_limit: 5 minutes\n", 6, ["time_limit", "500ms, 1.5s, 2m, 1h"]),
        (LEAST + "time_limit: -5\n", 6, ["time_limit"]),
        (LEAST + "time_limit: .nan\n", 6, ["time_limit"]),
        (LEAST + "time_limit: 1:30\n", 6, ["time_limit", "got '1:30'"]),
        (LEAST + "description: 5\n", 6, ["description: not a text"]),
        (LEAST + "<<: {seed: 1}\n", 6, ["merge keys"]),
        ("name: x\njobs:\n- name: j\n", 1, ["pools: missing"]),
        ("name: x\npools: []\njobs:\n- name: j\n", 2, ["pools: needs 1 to"]),
        ("name: x\npools: {name: p}\njobs:\n- name: j\n", 2, ["pools: not a list"]),
        ("name: a/b\npools:\n- name: test\njobs:\n- name: j\n", 1, ["name: ", "'a/b'"]),
        (
            LEAST.replace("- name: test", "- name: test\n- name: test"),
            4,
            ["pools[1].name: used twice (first on line 3)"],
        ),
        (LEAST.replace("- name: j", "- name: j\n- name: j"), 6, ["jobs[1].name: used twice"]),
        (LEAST.replace("test\n", "test\n  model: B200X\n"), 4, ["pools[0].model", "B200X"]),
        (LEAST.replace("test\n", "test\n  vram: 16Gi\n"), 4, ["pools[0].vram", "16Gi"]),
        (LEAST.replace("test\n", "test\n  policy: worst\n"), 4, ["pools[0].policy", "worst", "first_fit"]),
        (LEAST.replace("test\n", "test\n  agents: 3\n  max_agents: 2\n"), 5, ["pools[0].max_agents"]),
        (LEAST.replace("test\n", "test\n  agents: 0\n"), 4, ["never has an agent"]),
        (LEAST + "  pool: test\n  vram: 4G\n", 7, ["jobs[0].vram", "4G"]),
        (LEAST + "  pool: test\n  vram: 4\n  gpu_count: 2\n", 7, ["slices are for single-GPU"]),
        (LEAST + "  vram: 4\n", 6, ["given without a pool"]),
        (LEAST + "  cpus: 64\n", 6, ["jobs[0].cpus", "could never start"]),
        (LEAST + "  script: echo\n", 6, ["the first line is not #!"]),
        (LEAST + "  script_file: no/such.sh\n", 6, ["jobs[0].script_file: cannot be read"]),
        (LEAST + "  array: 5-1\n", 6, ["jobs[0].array"]),
        (LEAST + "  array: 0-3\n  interactive: true\n", 6, ["srun takes no arrays"]),
        (LEAST + "  run_time: {distribution: gauss}\n", 6, ["jobs[0].run_time.distribution: unknown", "lognormal"]),
        (LEAST + "  run_time: {mean: 2}\n", 6, ["jobs[0].run_time.distribution: missing"]),
        (LEAST + "  run_time: {distribution: uniform, low: 3, high: 2}\n", 6, ["run_time.high: less than low"]),
        (LEAST + "  arrival: {process: uniform, start: 3, end: 2}\n", 6, ["arrival.end: before start"]),
        (LEAST + "  arrival: {process: poisson, rate: 0}\n", 6, ["arrival.rate: out of range"]),
        (LEAST + "  expect: DONE\n", 6, ["jobs[0].expect: unknown", "COMPLETED"]),
        (LEAST + "faults:\n- {kind: agent_dise, at: 1}\n", 7, ["faults[0].kind: unknown (did you mean 'agent_dies'?)"]),
        (LEAST + "faults:\n- {at: 1}\n", 7, ["faults[0].kind: missing"]),
        (LEAST + "faults:\n- {kind: agent_dies}\n", 7, ["neither at nor after"]),
        (LEAST + "faults:\n- {kind: agent_dies, at: 1, after: {event: job_ended}}\n", 7, ["both at and after"]),
        (LEAST + "faults:\n- {kind: agent_dies, at: 1, pool: tset}\n", 7, ["no such pool (did you mean 'test'?)"]),
        (LEAST + "faults:\n- {kind: agent_dies, at: 1, agent: 1}\n", 7, ["has no such agent", "0 to 0"]),
        (LEAST + "faults:\n- {kind: node_fails, at: 1, node: node9}\n", 7, ["no such node", "node1 to node4"]),
        (LEAST + "faults:\n- {kind: replies, at: 1, action: delay}\n", 7, ["faults[0].for: missing"]),
        (
            LEAST + "faults:\n- {kind: replies, at: 1, count: 1, action: delay, status: 500}\n",
            7,
            ["means nothing with"],
        ),
        (LEAST + "faults:\n- {kind: token_expires, at: 1}\ncontroller: {auth: false}\n", 8, ["controller.auth"]),
        (
            LEAST + "faults:\n- {kind: controller_killed, at: 1, for: 9, repeat: {every: 3, times: 2}}\n",
            7,
            ["repeat.every: shorter than for"],
        ),
        (LEAST + "hooks: {settings: {JUICE_TOKEN: x}}\n", 6, ["hooks.settings.JUICE_TOKEN: set by the run itself"]),
        (LEAST + "hooks: {settings: {PATH: x}}\n", 6, ["not a setting of the hooks"]),
        (LEAST + "controller: {quirks: [open-source]}\n", 6, ["controller.quirks", "event stream"]),
        (LEAST + "controller: {quirks: fast}\n", 6, ["controller.quirks", "fast"]),
        (LEAST + "controller: {auth: yes please}\n", 6, ["controller.auth", "true or false"]),
    ],
)
def test_mistakes_are_told_with_line_and_key(text: str, line: int | None, words: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        parse_scenario(text, "file.yaml")
    message = str(caught.value)
    assert message.startswith("file.yaml:")
    assert "\n" not in message
    if line is not None:
        assert caught.value.line == line, message
    for word in words:
        assert word in message


def test_files_that_are_no_scenarios(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        load_scenario(tmp_path / "none.yaml")
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"name: x\n\xff\n")
    with pytest.raises(BadInput, match=r"bad\.yaml:2: not UTF-8"):
        load_scenario(path)
    path.write_bytes(b"#" * (4 << 20) + b"#")
    with pytest.raises(BadInput, match="larger than"):
        load_scenario(path)
    path.write_text("a: " + "[" * 100_000)
    with pytest.raises(BadInput):
        load_scenario(path)


def test_aliases_cannot_make_a_huge_file() -> None:
    text = "name: x\npools: [{name: test}]\njobs:\n- &j {name: j, options: &o [" + ", ".join(["a"] * 1000) + "]}\n"
    text += "".join(f"- {{name: j{number}, options: *o}}\n" for number in range(300))
    with pytest.raises(BadInput, match="aliases"):
        parse_scenario(text)


def test_a_script_comes_from_a_file_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(
        "#!/bin/sh\n#SBATCH --juice-pool=test\n#SBATCH hetjob\n#SBATCH --juice-pool=test\ntrue\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(LEAST + "  script_file: job.sh\n")
    scenario = load_scenario(path)
    assert scenario.jobs[0].script.startswith("#!/bin/sh")
    (made,) = submissions(scenario, 1)
    assert made.tasks == 2 and made.script == scenario.jobs[0].script


def test_shipped_scenarios_are_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"quickstart", "contention", "bad-day"} <= set(shipped())
    monkeypatch.chdir(tmp_path)
    assert find_scenario("quickstart") == shipped()["quickstart"]
    assert find_scenario("scenarios/bad-day.yaml") == shipped()["bad-day"]
    with pytest.raises(BadInput, match="did you mean 'contention'"):
        find_scenario("contentoin")
    with pytest.raises(BadInput, match="is a folder"):
        find_scenario(str(tmp_path))


def test_every_shipped_scenario_fits_the_published_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    validator = jsonschema.Draft202012Validator(json_schema())
    for path in shipped().values():
        assert load_scenario(path).name
        assert list(validator.iter_errors(yaml.safe_load(path.read_text()))) == []
    assert list(validator.iter_errors({"name": "x", "pools": [{"name": "p"}], "jobs": [{"name": "j", "cout": 3}]}))


def test_arrivals_and_run_times_come_from_the_seed() -> None:
    text = (
        LEAST
        + "  count: 50\n  arrival: {process: poisson, rate: 5}\n"
        + "  run_time: {distribution: exponential, mean: 2, most: 4}\n"
    )
    scenario = parse_scenario(text)
    first, again, other = submissions(scenario, 1), submissions(scenario, 1), submissions(scenario, 2)
    assert first == again != other
    assert [made.at for made in first] == sorted(made.at for made in first)
    assert 4 < first[-1].at < 25 and all(0 <= made.run_time <= 4 for made in first)
    more = parse_scenario(text + "- name: k\n  count: 3\n")
    assert [made for made in submissions(more, 1) if made.group == "j"] == first


@pytest.mark.parametrize(
    "text, size", [("0-9", 10), ("1,3,5", 3), ("0-10:5", 3), ("0-9%3", 10), ("4", 1), ("1-3,2-5", 5)]
)
def test_array_sizes(text: str, size: int) -> None:
    assert array_size(text) == size


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-9:0", "1,", "-3"])
def test_arrays_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not an array"):
        array_size(text)


def test_an_array_is_not_counted_out_to_the_last_of_its_tasks() -> None:
    with pytest.raises(ValueError, match="over 4000000"):
        array_size("0-99999999999")
    with pytest.raises(BadInput, match=r"<text>:6: jobs\[0\].script: an array with a task id over 4000000"):
        parse_scenario(LEAST + '  script: "#!/bin/sh\\n#SBATCH --array=0-99999999999\\n"\n')


@pytest.mark.parametrize(
    "text, words",
    [
        ('  env: {"A=B": x}\n', "jobs[0].env.A=B: not the name of a variable"),
        ('  env: {A: "x\\0y"}\n', "jobs[0].env.A: holds a NUL character"),
        ('slurm: {licenses: "x\\ny=1"}\n', "slurm.licenses: not a list of licenses"),
    ],
)
def test_what_no_process_or_slurm_could_be_given(text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_scenario(LEAST + text)
    assert words in str(caught.value)


def test_a_scenario_may_come_through_a_pipe_but_not_by_an_impossible_name(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert find_scenario(str(pipe)) == pipe
    with pytest.raises(BadInput, match="File name too long"):
        find_scenario("a" * 5000)


def test_tasks_of_a_script() -> None:
    assert script_tasks("#!/bin/sh\n#SBATCH --array=0-3\nx\n", "") == 4
    assert script_tasks("#!/bin/sh\n#SBATCH --array=0-3\nx\n", "0-1") == 2
    assert script_tasks("#!/bin/sh\n#SBATCH -a 1,2\n", "") == 2
    assert script_tasks("#!/bin/sh\ntrue\n#SBATCH --array=0-3\n", "") == 1


def test_the_reference_names_every_key() -> None:
    text = markdown()
    for word in ("`epilog_kill_probability`", "`scancel_in_prolog`", "faults, replies", "arrival, burst"):
        assert word in text or word.strip("`") in text
