"""Reads scenario files: YAML in, `Scenario` out, or one error that names file, line and key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from juice_sim import resources
from juice_sim.core.placement import policy_named
from juice_sim.core.units import parse_vram
from juice_sim.gpu_profiles import profile_named
from juice_sim.quirks import parse as parse_quirks

from .bad_input import BadInput, Reading, shorten, suggestion
from .scenario import (
    Arrival,
    CheckSpec,
    Component,
    ControllerSpec,
    Fault,
    HooksSpec,
    JobGroup,
    PoolSpec,
    RunTime,
    Scenario,
    SlurmSpec,
    When,
)
from .scenario_schema import SCENARIO
from .scenario_workload import array_size, script_tasks
from .slurm.batch_script import parse_licenses
from .slurm.interface import SubmitError
from .strict_yaml import read_yaml, read_yaml_file

MAX_SCRIPT_BYTES = 4 * 1024 * 1024
_OWN_SETTINGS = {
    "JUICE_CONTROLLER",
    "JUICE_TOKEN",
    "JUICE_TOKEN_FILE",
    "JUICE_STATE_DIR",
    "JUICE_KEY_FILE",
    "JUICE_WAIT",
}


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file. Raises BadInput."""
    value, reading, text = read_yaml_file(path, SCENARIO)
    return _build(value, reading, text, path.parent)


def parse_scenario(text: str, source: str = "<text>", folder: Path | None = None) -> Scenario:
    """Read and check a scenario given as text; `script_file` paths count from `folder`. Raises BadInput."""
    value, reading = read_yaml(text, source, SCENARIO)
    return _build(value, reading, text, folder or Path.cwd())


def shipped() -> dict[str, Path]:
    """The scenarios that travel with the package, by name."""
    return {path.stem: path for path in sorted(resources.scenarios_dir().glob("*.yaml"))}


def find_scenario(name: str) -> Path:
    """The file of a scenario given by path, or by the name of a shipped one. Raises BadInput."""
    path = Path(name)
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise BadInput(shorten(name), f"cannot be read: {error.strerror}", accepted="a scenario file") from None
    if exists and not is_folder:
        return path
    known = shipped()
    if name in known:
        return known[name]
    if is_folder:
        raise BadInput(name, "is a folder", accepted="a scenario file")
    # `scenarios/quickstart.yaml` is what the README says; it works from anywhere, not only from a checkout.
    if path.suffix == ".yaml" and path.parent in (Path("scenarios"), Path(".")) and path.stem in known:
        return known[path.stem]
    raise BadInput(
        name,
        f"no such file, and no shipped scenario has that name{suggestion(path.stem, known)}",
        accepted=f"a path, or one of {', '.join(known)}",
    )


def _build(value: dict[str, Any], reading: Reading, text: str, folder: Path) -> Scenario:
    pools = [_pool(pool, f"pools[{i}]", reading) for i, pool in enumerate(value["pools"])]
    _distinct([pool.name for pool in pools], "pools", reading)
    jobs = [_jobs(group, f"jobs[{i}]", reading, folder) for i, group in enumerate(value["jobs"])]
    _distinct([group.name for group in jobs], "jobs", reading)
    slurm: SlurmSpec = value.get("slurm", SlurmSpec())
    _licenses(slurm, reading)
    for i, group in enumerate(jobs):
        if group.cpus > slurm.cpus_per_node:
            raise reading.error(
                None,
                f"jobs[{i}].cpus",
                "more than a node has, so the job could never start",
                value=group.cpus,
                accepted=f"at most slurm.cpus_per_node ({slurm.cpus_per_node})",
            )
    controller: ControllerSpec = value.get("controller", ControllerSpec())
    _quirks(controller, reading)
    hooks: HooksSpec = value.get("hooks", HooksSpec())
    _check_settings(hooks.settings, reading)
    faults = [
        _fault(fault, i, f"faults[{i}]", reading, pools, slurm) for i, fault in enumerate(value.get("faults", []))
    ]
    if not controller.auth and any(fault.kind == "token_expires" for fault in faults):
        raise reading.error(None, "controller.auth", "false, but a fault is token_expires", accepted="true")
    return Scenario(
        name=value["name"],
        description=value.get("description", ""),
        seed=value.get("seed", 0),
        time_limit=value.get("time_limit", 300.0),
        pools=pools,
        controller=controller,
        slurm=slurm,
        hooks=hooks,
        jobs=jobs,
        faults=faults,
        checks=value.get("checks", CheckSpec()),
        text=text,
        source=reading.source,
    )


def _licenses(slurm: SlurmSpec, reading: Reading) -> None:
    if not slurm.licenses:
        return
    try:
        parse_licenses(slurm.licenses)
    except SubmitError:
        raise reading.error(
            None, "slurm.licenses", "not a list of licenses", value=slurm.licenses, accepted="name:count,name:count"
        ) from None


def _quirks(controller: ControllerSpec, reading: Reading) -> None:
    chosen = _parsed(parse_quirks, ",".join(controller.quirks), "controller.quirks", reading)
    if "no-extensions" in chosen:
        raise reading.error(
            None,
            "controller.quirks",
            "a run follows the controller's event stream, which is an extension",
            accepted="the quirk -no-extensions beside open-source",
        )


def _distinct(names: list[str], section: str, reading: Reading) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            first = reading.line_of(f"{section}[{names.index(name)}].name")
            raise reading.error(None, f"{section}[{position}].name", f"used twice (first on line {first})", value=name)


def _parsed(parse: Callable[[str], Any], text: str, key: str, reading: Reading) -> Any:
    """What `parse` makes of the text; its ValueError becomes an error with file, line and key."""
    try:
        return parse(text)
    except ValueError as error:
        raise reading.error(None, key, str(error)) from None


def _pool(value: dict[str, Any], key: str, reading: Reading) -> PoolSpec:
    vram = value.pop("vram", None)
    size = None if vram is None else _parsed(parse_vram, vram, f"{key}.vram", reading)
    pool = PoolSpec(**value, vram=size)
    _parsed(profile_named, pool.model, f"{key}.model", reading)
    if pool.policy:
        _parsed(policy_named, pool.policy, f"{key}.policy", reading)
    if pool.max_agents is not None and pool.max_agents < max(pool.agents, pool.min_agents):
        raise reading.error(
            None,
            f"{key}.max_agents",
            "less than agents or min_agents",
            value=pool.max_agents,
            accepted=f"at least {max(pool.agents, pool.min_agents)}",
        )
    if pool.may_grow_to == 0:
        raise reading.error(
            None, f"{key}.agents", "the pool never has an agent", value=0, accepted="agents or max_agents over 0"
        )
    return pool


def _ask(ask: Component, key: str, reading: Reading) -> None:
    # The pool's existence is not checked: asking for an unknown pool is something that a scenario may want to show.
    if not ask.pool and (ask.gpu_count is not None or ask.vram):
        name = "gpu_count" if ask.gpu_count is not None else "vram"
        raise reading.error(None, f"{key}.{name}", "given without a pool", accepted="pool beside it")
    if ask.vram:
        _parsed(parse_vram, ask.vram, f"{key}.vram", reading)
        if (ask.gpu_count or 1) > 1:
            raise reading.error(
                None,
                f"{key}.vram",
                "slices are for single-GPU sessions",
                value=ask.vram,
                accepted="gpu_count 1 beside vram",
            )


def _run_time(run_time: RunTime, key: str, reading: Reading) -> None:
    if run_time.distribution == "uniform" and run_time.high < run_time.low:
        raise reading.error(
            None, f"{key}.high", "less than low", value=run_time.high, accepted=f"at least {run_time.low:g}"
        )
    if run_time.most < run_time.least:
        raise reading.error(
            None, f"{key}.most", "less than least", value=run_time.most, accepted=f"at least {run_time.least:g}"
        )


def _arrival(arrival: Arrival, key: str, reading: Reading) -> None:
    if arrival.process == "uniform" and arrival.end < arrival.start:
        raise reading.error(
            None, f"{key}.end", "before start", value=arrival.end, accepted=f"at least {arrival.start:g}"
        )


def _jobs(value: dict[str, Any], key: str, reading: Reading, folder: Path) -> JobGroup:
    script_file = value.pop("script_file", None)
    if script_file is not None and "script" in value:
        raise reading.error(None, f"{key}.script_file", "given beside script", accepted="one of the two")
    if script_file is not None:
        value["script_path"], value["script"] = _script(folder / script_file, f"{key}.script_file", reading)
    group = JobGroup(**value)
    if group.script and not group.script.startswith("#!"):
        raise reading.error(
            None, f"{key}.script", "the first line is not #!", accepted="a batch script such as #!/bin/sh ..."
        )
    if group.array:
        _parsed(array_size, group.array, f"{key}.array", reading)
    elif group.script:
        _parsed(lambda script: script_tasks(script, ""), group.script, f"{key}.script", reading)
    for name in group.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise reading.error(
                None, f"{key}.env.{name}", "not the name of a variable", accepted="letters, digits, _; no digit first"
            )
    _ask(group.ask, key, reading)
    for position, component in enumerate(group.het):
        _ask(component, f"{key}.het[{position}]", reading)
    _run_time(group.run_time, f"{key}.run_time", reading)
    _arrival(group.arrival, f"{key}.arrival", reading)
    given = {
        "array": bool(group.array),
        "het": bool(group.het),
        "interactive": group.interactive,
        "pool": bool(group.ask.pool),
        "script": bool(group.script),
    }
    for one, other, reason in (
        ("het", "array", "a het job cannot be an array"),
        ("interactive", "array", "srun takes no arrays"),
        ("het", "pool", "each component names its own pool"),
        ("het", "script", "the script has its own `#SBATCH hetjob` lines"),
        ("interactive", "script", "srun takes a command; a script is for sbatch"),
    ):
        if given[one] and given[other]:
            raise reading.error(None, f"{key}.{other}", f"given beside {one}: {reason}", accepted="one of the two")
    return group


def _script(path: Path, key: str, reading: Reading) -> tuple[Path, str]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise reading.error(None, key, f"cannot be read: {error.strerror or error}", value=str(path)) from None
    if len(raw) > MAX_SCRIPT_BYTES:
        raise reading.error(
            None, key, f"larger than {MAX_SCRIPT_BYTES} bytes (as Slurm's max_script_size)", value=str(path)
        )
    try:
        return path, raw.decode()
    except UnicodeDecodeError:
        raise reading.error(None, key, "not UTF-8", value=str(path)) from None


def _check_settings(settings: Mapping[str, str], reading: Reading) -> None:
    for name, text in settings.items():
        key = f"hooks.settings.{name}"
        if name in _OWN_SETTINGS:
            raise reading.error(None, key, "set by the run itself", accepted="other JUICE_ names")
        if not name.startswith("JUICE_") or not name.replace("_", "").isalnum() or not name.isascii():
            raise reading.error(None, key, "not a setting of the hooks", accepted="JUICE_ names of juice-config.sh")
        if any(character in text for character in "\n\0"):
            raise reading.error(None, key, "more than one line", value=text)


_RULE_KEYS = ("action", "method", "path", "status", "retry_after", "seconds", "count", "probability", "body")


def _fault(
    value: dict[str, Any], position: int, key: str, reading: Reading, pools: list[PoolSpec], slurm: SlurmSpec
) -> Fault:
    kind = value.pop("kind")
    at, after, repeat = value.pop("at", None), value.pop("after", None), value.pop("repeat", None)
    if (at is None) == (after is None):
        reason = "neither at nor after" if at is None else "both at and after"
        raise reading.error(None, f"{key}.at", reason, accepted="one of the two")
    when = When(at=at, **(after or {}), **(repeat or {}))
    lasts = value.pop("for", {"controller_killed": 0.5, "slurmctld_killed": 1.0, "token_expires": 5.0}.get(kind))
    fields: dict[str, Any] = {"kind": kind, "when": when, "lasts": lasts, "position": position}
    if kind == "replies":
        fields["rule"] = _rule(value, key, reading)
        if lasts is None and "count" not in value:
            raise reading.error(
                None, f"{key}.for", "missing, and no count: the rule would stay for ever", accepted="for, count or both"
            )
    else:
        fields.update(value)
    fault = Fault(**fields)
    if when.every and fault.lasts is not None and fault.lasts > when.every:
        raise reading.error(
            None, f"{key}.repeat.every", "shorter than for", value=when.every, accepted=f"at least {fault.lasts:g}"
        )
    if fault.pool and fault.pool not in [pool.name for pool in pools]:
        names = [pool.name for pool in pools]
        raise reading.error(
            None,
            f"{key}.pool",
            f"no such pool{suggestion(fault.pool, names)}",
            value=fault.pool,
            accepted=", ".join(names),
        )
    if fault.agent is not None:
        if not fault.pool and len(pools) > 1:
            raise reading.error(None, f"{key}.agent", "given without a pool", accepted="pool beside it")
        position = fault.agent
        pool = next(pool for pool in pools if pool.name == (fault.pool or pools[0].name))
        fault = replace(fault, pool=pool.name)
        if position >= pool.may_grow_to:
            raise reading.error(
                None,
                f"{key}.agent",
                f"pool {pool.name} has no such agent",
                value=fault.agent,
                accepted=f"0 to {pool.may_grow_to - 1}",
            )
    known_nodes = [f"node{number}" for number in range(1, slurm.nodes + 1)]
    if fault.node and fault.node not in known_nodes:
        raise reading.error(
            None, f"{key}.node", "no such node", value=fault.node, accepted=f"node1 to node{slurm.nodes}"
        )
    return fault


def _rule(value: dict[str, Any], key: str, reading: Reading) -> dict[str, Any]:
    """A rule of `PUT /v1/faults` (docs/contracts.md, section 5)."""
    action = value["action"]
    for name, needed in (("status", "status"), ("retry_after", "status"), ("body", "status"), ("seconds", "delay")):
        if name in value and action != needed:
            raise reading.error(
                None, f"{key}.{name}", f"means nothing with action {action}", accepted=f"action {needed} beside it"
            )
    rule: dict[str, Any] = {"method": "*", "path": "/v1/"}
    rule.update({name: value[name] for name in _RULE_KEYS if name in value})
    if action == "status":
        rule.setdefault("status", 503)
    if action == "delay":
        rule.setdefault("seconds", 1.0)
    if "skip" in value:
        rule["after"] = value["skip"]
    return rule


__all__ = ["BadInput", "find_scenario", "load_scenario", "parse_scenario", "shipped"]
