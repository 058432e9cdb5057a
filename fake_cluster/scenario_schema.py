"""The format of scenario files: each key with its type and meaning. The reader, the JSON Schema and the reference in
docs/scenarios.md all come from here.

`python -m fake_cluster.scenario_schema json` prints the JSON Schema, `... markdown` the reference.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from . import scenario
from .strict_yaml import (
    Choice,
    Duration,
    Flag,
    Key,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Section,
    Text,
    Variant,
    Whole,
)

SLURM_VERSIONS = ("22.05", "24.11")
END_STATES = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL")
TRIGGER_EVENTS = (
    "session_queued",
    "session_assigned",
    "session_activated",
    "session_closed",
    "job_submitted",
    "job_in_prolog",
    "job_running",
    "job_requeued",
    "job_ended",
)
REPLY_ACTIONS = ("delay", "status", "drop_before", "drop_after", "hang", "garbage", "empty")

_NAME = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "letters, digits, . _ - (at most 63, not first . _ -)", loose=True)
_LABELS = MapOf(Text(accepted="a text", loose=True, max_length=256, allow_empty=True), "key: value pairs")

POOL = Section(
    "pools[]",
    [
        Key("name", _NAME, "Name by which jobs ask for it (`--juice-pool`).", required=True),
        Key("agents", Whole(0, 100_000), "Agents present at the start.", default="1"),
        Key("gpus", Whole(1, 128), "GPUs of each agent.", default="1"),
        Key("model", Text(max_length=100, loose=True), "GPU profile (`juice-sim agent --model`).", default="A10"),
        Key("vram", Text(max_length=40, loose=True), "VRAM of each GPU instead of the profile's: `24`, `24GiB`."),
        Key("labels", _LABELS, "Labels of its agents.", default="{}"),
        Key("taints", _LABELS, "Taints of its agents.", default="{}"),
        Key("min_agents", Whole(0, 10_000), "Agents that the autoscaler never goes below.", default="0"),
        Key("max_agents", Whole(0, 10_000), "Agents that the autoscaler may go up to.", default="`agents`"),
        Key(
            "policy",
            Text(max_length=60),
            "Placement policy of the controller in this pool.",
            default="the controller's",
        ),
    ],
    dict,
    "Agents of one pool are alike. With `--cluster none` nothing scales: there are `agents` of them.",
)

CONTROLLER = Section(
    "controller",
    [
        Key("auth", Flag(), "Tokens are required; the hooks get one of their own.", default="true"),
        Key("quirks", ListOf(Text(max_length=60), single=True), "Faults of the old controller, by name.", default="[]"),
        Key("missing_after", Duration(0.5, 3600), "Silence after which an agent is missing.", default="30"),
        Key("removed_after", Duration(0.5, 86400), "Further silence after which it is removed.", default="300"),
    ],
    scenario.ControllerSpec,
)

SLURM = Section(
    "slurm",
    [
        Key("nodes", Whole(1, 1000), "Compute nodes.", default="4"),
        Key("cpus_per_node", Whole(1, 4096), "CPUs of each; a job takes `cpus` of them.", default="16"),
        Key("cred_expire", Whole(5, 3600), "Seconds; a requeued job waits one second longer.", default="5"),
        Key("prolog_epilog_timeout", Whole(0, 65533), "Seconds after which a hook is killed; 0: never.", default="0"),
        Key(
            "epilog_kill_probability",
            Number(0, 1),
            "How often the epilog is itself killed after an scancel in the prolog (simulated Slurm).",
            default="0",
        ),
        Key("version", Choice(SLURM_VERSIONS), "Whose ways the simulated Slurm has.", default="22.05"),
        Key("licenses", Text(max_length=1000), "`Licenses=` of slurm.conf, such as `juice_test:8`."),
    ],
    scenario.SlurmSpec,
)

HOOKS = Section(
    "hooks",
    [
        Key("wait", Duration(0, 600), "JUICE_WAIT: how long the prolog waits for an active session.", default="20"),
        Key("session_file_wait", Duration(0, 600), "How long the node waits for the session file.", default="10"),
        Key(
            "reconcile_grace",
            Duration(1, 3600),
            "How old a start of a job must be before `reconcile` judges it by the queue (300 on a real cluster).",
            default="15",
        ),
        Key(
            "reconcile_every", Duration(0, 3600), "Interval of the `reconcile` timer; 0: only at the end.", default="10"
        ),
        Key(
            "settings",
            MapOf(Text(accepted="a text", loose=True, max_length=1000, allow_empty=True), "NAME: value lines"),
            "Further lines of juice-config.sh (`JUICE_...` names).",
            default="{}",
        ),
    ],
    scenario.HooksSpec,
)

_AMOUNT = [
    Key("least", Duration(), "Shorter draws are raised to this.", default="0"),
    Key("most", Duration(exclusive=True), "Longer draws are cut to this."),
]


def _run_time(distribution: str, **values: Any) -> scenario.RunTime:
    return scenario.RunTime(distribution=distribution, **values)


def _fixed(value: float) -> scenario.RunTime:
    return scenario.RunTime(seconds=value)


class _Fixed(Duration):
    """A run time in its short form: a number of seconds."""

    def read(self, node: Any, key: str, reading: Any) -> Any:
        return _fixed(super().read(node, key, reading))


RUN_TIME = OneOf(
    _Fixed(),
    Variant(
        "distribution",
        {
            "fixed": Section(
                "run_time, fixed",
                [Key("seconds", Duration(), "The run time.", required=True)],
                lambda **v: _run_time("fixed", **v),
            ),
            "uniform": Section(
                "run_time, uniform",
                [
                    Key("low", Duration(), "Shortest.", required=True),
                    Key("high", Duration(), "Longest.", required=True),
                ],
                lambda **v: _run_time("uniform", **v),
            ),
            "exponential": Section(
                "run_time, exponential",
                [Key("mean", Duration(exclusive=True), "Mean.", required=True)],
                lambda **v: _run_time("exponential", **v),
            ),
            "lognormal": Section(
                "run_time, lognormal",
                [
                    Key("median", Duration(exclusive=True), "Median.", required=True),
                    Key("sigma", Number(0, 10), "Standard deviation of the logarithm.", default="0.5"),
                ],
                lambda **v: _run_time("lognormal", **v),
            ),
        },
        common=_AMOUNT,
    ),
)


def _arrival(process: str, **values: Any) -> scenario.Arrival:
    return scenario.Arrival(process=process, **values)


class _At(Duration):
    """An arrival in its short form: all at that second."""

    def read(self, node: Any, key: str, reading: Any) -> Any:
        return scenario.Arrival(at=super().read(node, key, reading))


ARRIVAL = OneOf(
    _At(),
    Variant(
        "process",
        {
            "at": Section(
                "arrival, at",
                [Key("at", Duration(), "All jobs at this second.", required=True)],
                lambda **v: _arrival("at", **v),
            ),
            "uniform": Section(
                "arrival, uniform",
                [
                    Key("start", Duration(), "Not before.", default="0"),
                    Key("end", Duration(), "Not after.", required=True),
                ],
                lambda **v: _arrival("uniform", **v),
            ),
            "poisson": Section(
                "arrival, poisson",
                [
                    Key("rate", Number(0, 1e6, "jobs a second", exclusive=True), "Mean rate.", required=True),
                    Key("start", Duration(), "Not before.", default="0"),
                ],
                lambda **v: _arrival("poisson", **v),
            ),
            "burst": Section(
                "arrival, burst",
                [
                    Key("size", Whole(1, 1_000_000), "Jobs in each burst.", required=True),
                    Key("every", Duration(exclusive=True), "Seconds between bursts.", default="1"),
                    Key("start", Duration(), "The first burst.", default="0"),
                ],
                lambda **v: _arrival("burst", **v),
            ),
        },
    ),
)

_ASK = [
    Key("pool", _NAME, "`--juice-pool`; without it the job has no Juice options, unless its script has."),
    Key("gpu_count", Whole(1, 64), "`--juice-gpu-count`.", default="1"),
    Key("vram", Text(max_length=40, loose=True), "`--juice-vram`: a slice of this size; without it whole GPUs."),
]


def _component(pool: str = "", gpu_count: int | None = None, vram: str = "") -> scenario.Component:
    return scenario.Component(pool=pool, gpu_count=gpu_count, vram=vram)


def _group(**values: Any) -> dict[str, Any]:
    ask = {name: values.pop(name) for name in ("pool", "gpu_count", "vram") if name in values}
    return {**values, "ask": _component(**ask)}


JOBS = Section(
    "jobs[]",
    [
        Key("name", _NAME, "Name of the group; its jobs are called so, too.", required=True),
        Key("count", Whole(1, 1_000_000), "Jobs (arrays, het jobs) to submit.", default="1"),
        *_ASK,
        Key("script", Text(max_length=1_000_000), "A batch script, `#SBATCH` lines included."),
        Key("script_file", Text(max_length=4096), "Path of a batch script, from the scenario's folder."),
        Key("arrival", ARRIVAL, "When they are submitted: seconds, or an arrival process.", default="0"),
        Key(
            "run_time",
            RUN_TIME,
            "How long a job runs: seconds, or a distribution. A script finds its draw in `JUICE_SIM_RUN_TIME`.",
            default="1",
        ),
        Key("array", Text(r"[0-9,:%-]+", "as sbatch --array: 0-9, 1,3,5, 0-9%3", loose=True), "`--array`."),
        Key(
            "het",
            ListOf(Section("jobs[].het[]", _ASK, _component), least=2, most=16),
            "Components of a heterogeneous job.",
        ),
        Key("interactive", Flag(), "Run by srun, not by sbatch.", default="false"),
        Key("requeue", Flag(), "false: `--no-requeue`.", default="true"),
        Key("cpus", Whole(1, 4096), "CPUs of each job (task).", default="1"),
        Key("options", ListOf(Text(max_length=4096, loose=True)), "Further options of sbatch or srun.", default="[]"),
        Key(
            "env",
            MapOf(Text(loose=True, allow_empty=True), "NAME: value pairs"),
            "Environment at submit.",
            default="{}",
        ),
        Key(
            "expect",
            ListOf(Choice(END_STATES), single=True),
            "End states that are right for these jobs.",
            default="any",
        ),
    ],
    _group,
)

WHEN = [
    Key("at", Duration(), "Seconds from the start of the run."),
    Key(
        "after",
        Section(
            "faults[].after",
            [
                Key("event", Choice(TRIGGER_EVENTS), "What is counted.", required=True),
                Key("count", Whole(1, 10_000_000), "How many of them.", default="1"),
            ],
            dict,
        ),
        "Instead of `at`: once so many events have been seen.",
    ),
    Key(
        "repeat",
        Section(
            "faults[].repeat",
            [
                Key("every", Duration(exclusive=True), "Seconds between two.", required=True),
                Key("times", Whole(2, 100_000), "How often in all.", required=True),
            ],
            dict,
        ),
        "Again and again.",
    ),
]
_AGENT = [
    Key("pool", _NAME, "Pool of the agent.", default="any"),
    Key("agent", Whole(0, 100_000), "Position of the agent in its pool, from 0.", default="one that has sessions"),
]


def _lasts(meaning: str, default: str = "") -> Key:
    return Key("for", Duration(exclusive=True), meaning, default=default)


def _fault(kind: str, *keys: Key, about: str = "") -> Section:
    return Section(f"faults, {kind}", list(keys), lambda **values: {"kind": kind, **values}, about)


FAULT = Variant(
    "kind",
    {
        "agent_dies": _fault(
            "agent_dies",
            *_AGENT,
            _lasts("It comes back (as a new agent) after this.", "never"),
            about="The agent's process ends at once: its connections break, its heartbeats stop.",
        ),
        "agent_hangs": _fault(
            "agent_hangs",
            *_AGENT,
            _lasts("It goes on after this.", "until `agent_returns`"),
            about="The agent stops answering and sends no heartbeat, but its connections stay open.",
        ),
        "agent_returns": _fault("agent_returns", *_AGENT, about="A hanging agent goes on; a dead one is started anew."),
        "controller_killed": _fault(
            "controller_killed",
            _lasts("Started again after this.", "0.5"),
            Key("signal", Whole(1, 31), "9: crash; 15: orderly.", default="9"),
            about="The controller's process is killed and started again with the same data.",
        ),
        "replies": _fault(
            "replies",
            Key("action", Choice(REPLY_ACTIONS), "What happens to a request.", required=True),
            Key("method", Choice(["GET", "POST", "PUT", "DELETE", "*"]), "Which requests.", default="`*`"),
            Key("path", Text(r"/\S*", "a path such as /v1/request/session"), "Paths that begin so.", default="/v1/"),
            Key("status", Whole(400, 599), "Status of the answer (`status`).", default="503"),
            Key("retry_after", Whole(0, 3600), "`Retry-After` of the answer, in seconds."),
            Key("seconds", Duration(0, 3600), "Length of a `delay`.", default="1"),
            Key("count", Whole(1, 1_000_000), "How many requests.", default="no limit"),
            Key("skip", Whole(0, 1_000_000), "Requests let through first.", default="0"),
            Key("probability", Number(0, 1), "Chance of each request.", default="1"),
            Key("body", Text(max_length=4000, allow_empty=True), "Body of the answer."),
            _lasts("The rule is taken away after this.", "until its count is used up"),
            about="Requests to the controller are delayed, refused or lost: `drop_before` before the command takes "
            "effect, `drop_after` afterwards.",
        ),
        "token_expires": _fault(
            "token_expires",
            _lasts("A new token is put in place after this.", "5"),
            about="The hooks' token is no longer accepted (401) until it is renewed.",
        ),
        "scancel_in_prolog": _fault(
            "scancel_in_prolog",
            Key("jobs", Whole(1, 100_000), "How many jobs are cancelled, each inside its prolog.", default="1"),
            Key("delay", Duration(0, 60), "Seconds from seeing the prolog to scancel.", default="0"),
        ),
        "slurmctld_killed": _fault(
            "slurmctld_killed",
            _lasts("Started again after this.", "1"),
            Key("signal", Whole(1, 31), "9: crash; 15: orderly.", default="9"),
        ),
        "node_fails": _fault(
            "node_fails",
            Key(
                "node", Text(r"[A-Za-z0-9-]{1,63}", "a node's name such as node1"), "Which node.", default="a busy one"
            ),
            _lasts("It comes back after this.", "never"),
        ),
    },
    common=WHEN,
)

CHECKS = Section(
    "checks",
    [
        Key("all_completed", Flag(), "Every job ends COMPLETED.", default="false"),
        Key("min_completed", Whole(0, 10_000_000), "At least so many jobs end COMPLETED."),
        Key("max_requeues", Whole(0, 10_000_000), "At most so many requeues in all."),
        Key("min_requeues", Whole(0, 10_000_000), "At least so many: shows that there was contention."),
        Key("max_restarts_per_job", Whole(0, 10_000_000), "No job is requeued more often."),
        Key("max_queue_wait", Duration(), "No job waits longer from submit to its last start."),
        Key("max_prolog", Duration(), "No granted prolog takes longer."),
        Key("max_release_delay", Duration(), "A session is closed at the latest so long after its job's end."),
        Key("gpus_shared", Flag(), "At some instant a GPU is shared by two slices or more.", default="false"),
    ],
    scenario.CheckSpec,
    "These come on top of what is always checked.",
)

SCENARIO = Section(
    "scenario",
    [
        Key("name", _NAME, "Name of the scenario, for reports.", required=True),
        Key("description", Text(max_length=10_000), "What it shows."),
        Key(
            "seed", Whole(0, 2**31 - 1), "Seed of arrivals, run times and choices; `--seed` overrides it.", default="0"
        ),
        Key("time_limit", Duration(1, 86400), "Jobs that have not ended by then are a failed check.", default="300"),
        Key("pools", ListOf(POOL, least=1, most=1000), "Pools and their agents.", required=True),
        Key("controller", CONTROLLER, "Settings of the controller.", default="{}"),
        Key("slurm", SLURM, "Size and settings of Slurm.", default="{}"),
        Key("hooks", HOOKS, "Settings of the hooks.", default="{}"),
        Key("jobs", ListOf(JOBS, least=1, most=10_000), "Groups of jobs.", required=True),
        Key("faults", ListOf(FAULT), "What goes wrong, and when.", default="[]"),
        Key("checks", CHECKS, "What must hold at the end.", default="{}"),
    ],
    dict,
)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of scenario files; cross-references (such as pool names) are checked by the reader only."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "juice-sim scenario",
        **SCENARIO.json_schema(),
    }


def markdown() -> str:
    """The reference tables of docs/scenarios.md."""
    seen: set[str] = set()
    parts = []
    for section in SCENARIO.nested():
        if section.title in seen:
            continue
        seen.add(section.title)
        lines = [f"### {section.title}", ""]
        if section.about:
            lines += [section.about, ""]
        lines += ["| key | accepted | default | meaning |", "|---|---|---|---|"]
        for key in section.keys:
            accepted = _brief(key)
            default = "**required**" if key.required else key.default
            lines.append(f"| `{key.name}` | {accepted} | {default} | {key.meaning} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _brief(key: Key) -> str:
    inner = key.type.nested()
    if isinstance(key.type, ListOf) and inner:
        return f"list of {inner[0].title.split(',')[0]}"
    if isinstance(key.type, OneOf):
        return f"{key.type.short.accepted}; or a mapping, see below"
    if inner:
        return f"mapping, see {inner[0].title}"
    return key.type.accepted.replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Print the format as `json` or `markdown`."""
    if list(arguments) == ["json"]:
        print(json.dumps(json_schema(), indent=2))
    elif list(arguments) == ["markdown"]:
        print(markdown(), end="")
    else:
        print("usage: python -m fake_cluster.scenario_schema json|markdown", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
