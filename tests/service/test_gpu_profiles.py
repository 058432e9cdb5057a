"""GPU models by name."""

from __future__ import annotations

import pytest

from juice_sim.gpu_profiles import UnknownModel, make_gpus, profile_named, profiles


def test_common_models_are_there_with_plausible_values():
    wanted = {
        "T4",
        "P100",
        "V100-16",
        "V100-32",
        "A10",
        "A30",
        "A40",
        "A100-40",
        "A100-80",
        "L4",
        "L40S",
        "H100",
        "H200",
    }
    assert wanted <= set(profiles())
    for profile in profiles().values():
        assert 4 << 30 < profile.vram < 256 << 30
        assert 0 < profile.device_id < 1 << 16
        assert 50 <= profile.watts <= 1200


@pytest.mark.parametrize("text", ["A100-80", "a100-80", "A100 80", "a100_80", "A100", "NVIDIA A100-SXM4-80GB"])
def test_spelling_does_not_matter(text):
    assert profile_named(text).key == "A100-80"


@pytest.mark.parametrize("text", ["", "Voodoo2", "A1000", "A"])
def test_unknown_model_lists_the_known(text):
    with pytest.raises(UnknownModel, match=r"accepted: A2, A10, .*V100-32"):
        profile_named(text)


def test_gpus_differ_and_the_same_identity_gives_the_same():
    first, second = make_gpus("T4", 40, identity="host1"), make_gpus("T4", 40, identity="host1")
    assert first == second
    assert len({gpu.uuid for gpu in first}) == len({gpu.pci_bus for gpu in first}) == 40
    assert make_gpus("T4", 1)[0].uuid != make_gpus("T4", 1)[0].uuid
    assert make_gpus("T4", 1, vram=5)[0].vram == 5


@pytest.mark.parametrize(("count", "vram"), [(-1, None), (2000, None), (1, 0), (1, 2**63)])
def test_senseless_numbers(count, vram):
    with pytest.raises(ValueError, match="accepted"):
        make_gpus("T4", count, vram=vram)
