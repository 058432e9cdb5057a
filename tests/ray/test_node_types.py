from __future__ import annotations

import pytest

from fake_cluster.autoscaling_config import autoscaling_config
from fake_cluster.node_types import GIB, GpuPool, gpu_node_types, label_value, slurm_node_types


def test_a_node_says_pool_model_gpus_and_vram() -> None:
    types = gpu_node_types([GpuPool("test", agents=1, gpus=2, model="A10", vram=24 * GIB, max_agents=3)])
    assert types == {
        "juice_test": {
            "resources": {"CPU": 1, "GPU": 2, "vram_gib": 48, "juice_pool_test": 1},
            "labels": {"juice-pool": "test", "juice-gpu-model": "A10", "juice-gpus": "2", "juice-vram-gib": "24"},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 3,
        }
    }
    autoscaling_config({"CPU": 1}, types)


def test_many_agents_share_a_node() -> None:
    pool = GpuPool("big", agents=90, gpus=8, vram=80 * GIB, agents_per_node=40, max_agents=1000, min_agents=50)
    spec = gpu_node_types([pool])["juice_big"]
    assert (spec["min_workers"], spec["max_workers"], pool.nodes_for(90)) == (2, 25, 3)
    assert spec["resources"]["GPU"] == 320
    assert spec["resources"]["juice_pool_big"] == 40


@pytest.mark.parametrize("name", ["A100 (east), new", "ä" * 200, "a,b:1"])
def test_names_that_ray_cannot_carry_are_made_to_fit(name: str) -> None:
    pool = GpuPool(name, vram=GIB)
    assert pool.pool_resource.replace("_", "").replace("-", "").replace(".", "").isalnum()
    assert len(label_value(name)) <= 63
    assert GpuPool(name + "2", vram=GIB).pool_resource != pool.pool_resource


def test_pools_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="max_agents is smaller"):
        GpuPool("p", agents=3, max_agents=2)
    with pytest.raises(ValueError, match="gpus must be 1 or more; got 0"):
        GpuPool("p", gpus=0)
    with pytest.raises(ValueError, match="two pools are named 'p'"):
        gpu_node_types([GpuPool("p", vram=GIB), GpuPool("p", vram=GIB)])
    with pytest.raises(ValueError, match="Slurm nodes"):
        slurm_node_types(-1, 4)


def test_slurm_nodes_have_cpus_only() -> None:
    spec = slurm_node_types(3, 16)["slurm_node"]
    assert spec["resources"] == {"CPU": 16, "slurm_node": 1}
    assert spec["max_workers"] == 3
