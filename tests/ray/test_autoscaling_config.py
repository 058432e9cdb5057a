from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_cluster.autoscaling import AutoscalingCluster
from fake_cluster.autoscaling_config import (
    ConfigError,
    autoscaling_config,
    merge_config,
    read_autoscaling_config,
    validate_autoscaling_config,
    write_config,
)

EXAMPLE = Path(__file__).parents[2] / "example.yaml"
GPU = {"resources": {"CPU": 1, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good configuration with one thing changed; None takes it away."""
    config = autoscaling_config({"CPU": 2}, {"gpu": GPU})
    *parents, last = path.split("/")
    at = config
    for key in parents:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("file_mounts", None, r"^file_mounts: is missing"),
        ("setup_commands", None, r"^setup_commands: is missing"),
        ("max_workers", -1, r"^max_workers: .*got -1; accepted: a whole number"),
        ("max_workers", True, r"^max_workers: .*got True"),
        ("max_workers", "8", r"^max_workers: .*got '8'"),
        ("idle_timeout_minutes", float("nan"), r"^idle_timeout_minutes: "),
        ("cluster_name", "", r"^cluster_name: "),
        ("idle_timeout_minute", 1, r"^idle_timeout_minute: .*did you mean idle_timeout_minutes"),
        ("rsync_filter", "x", r"^rsync_filter: .*a list of strings"),
        ("head_node_type", "head", r"^head_node_type: names no node type; got 'head'; accepted: gpu, ray.head.default"),
        ("provider/type", "aws", r"^provider\.type: .*got 'aws'"),
        ("provider/module", None, r"^provider\.module: "),
        ("provider/use_node_id_as_ip", False, r"^provider\.use_node_id_as_ip: must be true"),
        ("provider/start_in_parallel", 0, r"^provider\.start_in_parallel: "),
        ("available_node_types/gpu/resources", None, r"^available_node_types\.gpu\.resources: is missing"),
        ("available_node_types/gpu/resources/GPU", -1, r"^available_node_types\.gpu\.resources\.GPU: "),
        ("available_node_types/gpu/resources/GPU", 0.5, r"GPU: nodes have whole numbers of resources; got 0\.5"),
        ("available_node_types/gpu/labels", {"gpus": 2}, r"^available_node_types\.gpu\.labels\.gpus: .*a string"),
        ("available_node_types/gpu/max_worker", 2, r"max_worker: .*did you mean max_workers"),
        ("available_node_types/gpu/min_workers", 3, r"gpu\.min_workers: is larger than max_workers \(2\); got 3"),
        ("available_node_types/gpu", [], r"^available_node_types\.gpu: "),
        ("available_node_types/ray.head.default/min_workers", 1, r"min_workers: "),
    ],
)
def test_an_error_names_the_key(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate_autoscaling_config(changed(path, value))
    assert "\n" not in str(caught.value)


def test_numbers_of_nodes_that_are_left_out_are_filled_in() -> None:
    config = autoscaling_config({"CPU": 2}, {"gpu": {"resources": {"GPU": 1}}}, max_workers=5)
    assert config["available_node_types"]["gpu"]["min_workers"] == 0
    assert config["available_node_types"]["gpu"]["max_workers"] == 5
    assert config["available_node_types"]["ray.head.default"]["max_workers"] == 0


def test_min_workers_of_all_types_fit_into_max_workers() -> None:
    config = changed("max_workers", 1)
    config["available_node_types"]["gpu"]["min_workers"] = 2
    with pytest.raises(ConfigError, match=r"^max_workers: is smaller than the sum of all min_workers \(2\); got 1"):
        validate_autoscaling_config(config)


def test_the_constructor_refuses_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="upscaling_speed"):
        AutoscalingCluster({"CPU": 1}, {"gpu": GPU}, upscaling_speed="fast")


def test_the_callers_dictionaries_stay_as_they_are() -> None:
    head, types = {"CPU": 2, "GPU": 0, "object_store_memory": 100 << 20, "custom": 3}, {"gpu": {**GPU}}
    del types["gpu"]["node_config"]
    before = copy.deepcopy((head, types))
    cluster = AutoscalingCluster(head, types, max_workers=3)
    cluster.update_config(available_node_types={"gpu": {"max_workers": 1}})
    assert (head, types) == before
    assert cluster.config["available_node_types"]["gpu"]["max_workers"] == 1
    assert cluster.config["available_node_types"]["ray.head.default"]["resources"] == head
    cluster.config["max_workers"] = 99
    assert cluster.config["max_workers"] == 3


def test_an_update_that_would_not_work_changes_nothing() -> None:
    cluster = AutoscalingCluster({"CPU": 2}, {"gpu": GPU})
    before = cluster.config
    with pytest.raises(ConfigError, match=r"available_node_types\.gpu\.max_workers"):
        cluster.update_config(available_node_types={"gpu": {"max_workers": "many"}})
    assert cluster.config == before


def test_merging_goes_key_by_key_and_none_takes_away() -> None:
    config = {"a": {"x": 1, "y": {"z": 2}}, "b": [1], "c": 3}
    assert merge_config(config, {"a": {"y": {"w": 4}, "x": None}, "b": [2], "d": 5}) == {
        "a": {"y": {"z": 2, "w": 4}},
        "b": [2],
        "c": 3,
        "d": 5,
    }
    assert config == {"a": {"x": 1, "y": {"z": 2}}, "b": [1], "c": 3}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    config = autoscaling_config({"CPU": 2}, {"gpu": GPU}, head_labels={"role": "head"})
    write_config(tmp_path / "c.json", config)
    assert json.loads((tmp_path / "c.json").read_text()) == config
    assert read_autoscaling_config(tmp_path / "c.json") == config
    assert list(tmp_path.iterdir()) == [tmp_path / "c.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "is not YAML"), ("[]", "must be a mapping"), ("max_workers: 1", "cluster_name: is mis")],
)
def test_errors_in_a_file_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        AutoscalingCluster.from_config(tmp_path / "c.yaml")
    assert str(tmp_path / "c.yaml") in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_autoscaling_config(tmp_path / "none.yaml")


def test_the_example_is_complete_and_says_what_its_nodes_are() -> None:
    config = read_autoscaling_config(EXAMPLE)
    training = config["available_node_types"]["juice_training"]
    assert training["labels"]["juice-pool"] == "training"
    assert training["resources"]["vram_gib"] == training["resources"]["GPU"] * int(training["labels"]["juice-vram-gib"])
    assert config["provider"] == yaml.safe_load(EXAMPLE.read_text())["provider"]
