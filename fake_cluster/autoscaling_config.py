"""The autoscaler's configuration: make a complete one, check it, merge changes into it, write it.

Ray reads an incomplete file without complaint and its autoscaler then dies in the background, or it ignores a
misspelt key; tasks wait for ever. So everything is checked here first, and an error names the key.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

HEAD_NODE_TYPE = "ray.head.default"
PROVIDER_MODULE = "fake_cluster.provider.FakeNodeProvider"

_COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
_LISTS = ("cluster_synced_files", "rsync_exclude", "rsync_filter")
# Everything that Ray's autoscaler reads without a default of its own.
REQUIRED = (
    "cluster_name",
    "max_workers",
    "upscaling_speed",
    "idle_timeout_minutes",
    "provider",
    "available_node_types",
    "head_node_type",
    "auth",
    "file_mounts",
    "file_mounts_sync_continuously",
    *_COMMANDS,
    *_LISTS,
)
OPTIONAL = ("docker", "metadata", "no_restart")
NODE_TYPE_KEYS = (
    "resources",
    "node_config",
    "min_workers",
    "max_workers",
    "labels",
    "idle_timeout_s",
    "priority",
    "initialization_commands",
    "worker_setup_commands",
    "docker",
)
PREDEFINED_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")


class ConfigError(ValueError):
    """A configuration that would not work. `str(error)` is one line: key, what is wrong, value, what is accepted."""

    def __init__(self, key: str, reason: str, value: Any = None, accepted: str = "") -> None:
        self.key = key
        text = f"{key}: {reason}"
        if value is not None:
            shown = repr(value)
            text += f"; got {shown if len(shown) <= 120 else shown[:117] + '...'}"
        if accepted:
            text += f"; accepted: {accepted}"
        super().__init__(text)


def autoscaling_config(
    head_resources: Mapping[str, float],
    worker_node_types: Mapping[str, Mapping[str, Any]],
    head_labels: Mapping[str, str] | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """A complete configuration. `overrides` replace top-level keys, as with Ray's class; `provider` is merged, because
    the key that names our provider has to stay. Nothing that the caller gave is kept or changed. Raises ConfigError."""
    config: dict[str, Any] = {
        "cluster_name": "fake",
        # As in Ray's own file for fake clusters: high enough not to matter before the types' own limits do.
        "max_workers": 8,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.1,
        "provider": {},
        "auth": {},
        "available_node_types": copy.deepcopy({name: dict(spec) for name, spec in worker_node_types.items()}),
        "head_node_type": HEAD_NODE_TYPE,
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{key: [] for key in (*_COMMANDS, *_LISTS)},
    }
    config["available_node_types"].setdefault(
        HEAD_NODE_TYPE,
        {
            "resources": dict(head_resources),
            "labels": dict(head_labels or {}),
            "node_config": {},
            "min_workers": 0,
            "max_workers": 0,
        },
    )
    provider = overrides.pop("provider", None) or {}
    config.update(copy.deepcopy(overrides))
    config["provider"] = {
        "use_node_id_as_ip": True,  # all nodes share one address; the autoscaler tells them apart by id
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "launch_multiple": True,
        "module": PROVIDER_MODULE,
        **copy.deepcopy(dict(provider)),
        "type": "external",
    }
    for spec in config["available_node_types"].values():
        if isinstance(spec, dict):
            spec.setdefault("node_config", {})
    return completed(config)


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with the node types' `min_workers` and `max_workers` filled in: left out, they are 0 and all that there
    may be. Ray fills them in on `ray up` only; without them its v1 autoscaler starts no such node. Raises ConfigError.
    """
    validate_autoscaling_config(config)
    full = copy.deepcopy(dict(config))
    for name, spec in full["available_node_types"].items():
        spec.setdefault("min_workers", 0)
        spec.setdefault("max_workers", 0 if name == full["head_node_type"] else full["max_workers"])
    return full


def read_autoscaling_config(path: Path) -> dict[str, Any]:
    """Read a complete configuration file. Raises ConfigError that names file and key."""
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(str(path), "is not YAML: " + " ".join(str(error).split())) from error
    try:
        return completed(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.key}", str(error).removeprefix(f"{error.key}: ")) from error


def merge_config(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `changes` merged in, dictionaries key by key at any depth; None takes a key away."""
    merged: dict[str, Any] = copy.deepcopy(dict(config))
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_config(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write as JSON (which is YAML), complete or not at all: the autoscaler reads the file every second."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:
        json.dump(config, file, indent=1)
    os.replace(temporary, path)


# --- checks ----------------------------------------------------------------------------------------------------------


def validate_autoscaling_config(config: Any) -> None:
    """Raise ConfigError for the first key that is missing, unknown or has a value that would not work."""
    if not isinstance(config, Mapping):
        raise ConfigError("configuration", "must be a mapping", config)
    for key in config:
        if key not in (*REQUIRED, *OPTIONAL):
            raise ConfigError(str(key), _unknown(key, (*REQUIRED, *OPTIONAL)))
    for key in REQUIRED:
        if key not in config:
            raise ConfigError(key, "is missing; Ray's autoscaler needs it to be there, even when it is empty")
    _check("cluster_name", config["cluster_name"], lambda v: isinstance(v, str) and v != "", "a name")
    _check("max_workers", config["max_workers"], _is_count, "a whole number of worker nodes, 0 or more")
    _check("upscaling_speed", config["upscaling_speed"], _is_amount, "a number, 0 or more")
    _check("idle_timeout_minutes", config["idle_timeout_minutes"], _is_amount, "minutes, 0 or more, fractions allowed")
    _check("file_mounts_sync_continuously", config["file_mounts_sync_continuously"], _is_bool, "true or false")
    for key in ("auth", "file_mounts", "provider", "available_node_types"):
        _check(key, config[key], lambda v: isinstance(v, Mapping), "a mapping")
    for key in (*_COMMANDS, *_LISTS):
        _check(key, config[key], _is_text_list, "a list of strings")
    _validate_provider(config["provider"])
    _validate_node_types(config)


def _validate_provider(provider: Mapping[str, Any]) -> None:
    kind = provider.get("type")
    if kind not in ("external", "fake_multinode", "fake_multinode_docker"):
        raise ConfigError("provider.type", "is not one of a fake cluster", kind, "external, fake_multinode")
    if kind == "external":
        _check(
            "provider.module", provider.get("module"), lambda v: isinstance(v, str) and "." in v, "package.module.Class"
        )
    if kind != "fake_multinode_docker" and provider.get("use_node_id_as_ip") is not True:
        raise ConfigError(
            "provider.use_node_id_as_ip",
            "must be true: all fake nodes have one address",
            provider.get("use_node_id_as_ip"),
        )
    if (parallel := provider.get("start_in_parallel")) is not None:
        _check("provider.start_in_parallel", parallel, lambda v: _is_count(v) and v > 0, "a whole number, 1 or more")


def _validate_node_types(config: Mapping[str, Any]) -> None:
    node_types = config["available_node_types"]
    head = config["head_node_type"]
    if head not in node_types:
        raise ConfigError(
            "head_node_type", "names no node type", head, ", ".join(map(str, node_types)) or "none defined"
        )
    for name, spec in node_types.items():
        _validate_node_type(f"available_node_types.{name}", spec, is_head=name == head)
    minimum = sum(spec.get("min_workers", 0) for name, spec in node_types.items() if name != head)
    if minimum > config["max_workers"]:
        raise ConfigError(
            "max_workers", f"is smaller than the sum of all min_workers ({minimum})", config["max_workers"]
        )


def _validate_node_type(key: str, spec: Any, *, is_head: bool) -> None:
    _check(key, spec, lambda v: isinstance(v, Mapping), "a mapping")
    for name in spec:
        if name not in NODE_TYPE_KEYS:
            raise ConfigError(f"{key}.{name}", _unknown(name, NODE_TYPE_KEYS))
    for name in ("resources", "node_config"):
        if name not in spec:
            raise ConfigError(f"{key}.{name}", "is missing; it must be there, even when it is empty")
        _check(f"{key}.{name}", spec[name], lambda v: isinstance(v, Mapping), "a mapping")
    for resource, amount in spec["resources"].items():
        _check(f"{key}.resources.{resource}", amount, _is_amount, "a number, 0 or more")
        if amount != int(amount):
            raise ConfigError(f"{key}.resources.{resource}", "nodes have whole numbers of resources", amount)
    for label, value in spec.get("labels", {}).items():
        _check(f"{key}.labels.{label}", value, lambda v: isinstance(v, str), "a string (quote numbers and true/false)")
    for name in ("min_workers", "max_workers"):
        if name in spec:
            _check(f"{key}.{name}", spec[name], _is_count, "a whole number of nodes, 0 or more")
    if (timeout := spec.get("idle_timeout_s")) is not None:
        _check(f"{key}.idle_timeout_s", timeout, _is_amount, "seconds, 0 or more")
    if spec.get("min_workers", 0) > spec.get("max_workers", 0) and "max_workers" in spec:
        raise ConfigError(
            f"{key}.min_workers", f"is larger than max_workers ({spec['max_workers']})", spec["min_workers"]
        )
    if is_head and spec.get("min_workers", 0) != 0:
        raise ConfigError(f"{key}.min_workers", "the head node is no worker", spec["min_workers"], "0")


def _check(key: str, value: Any, accept: Callable[[Any], bool], accepted: str) -> None:
    if not accept(value):
        raise ConfigError(key, "has a value that does not work", value if value is not None else "null", accepted)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _unknown(name: object, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return "is not a key that Ray knows" + (f"; did you mean {close[0]}?" if close else "; known: " + ", ".join(known))
