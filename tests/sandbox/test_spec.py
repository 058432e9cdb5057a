from __future__ import annotations

import json

import pytest

from fake_cluster.sandbox.spec import BadSpec, SandboxSpec, check_name, parse_pool, parse_pools


def test_a_pool_is_read_with_all_that_it_may_have():
    pool = parse_pool("test:agents=2,gpus=4,model=A10,vram=24GiB,label.zone=a,taint.team=ml")
    assert (pool.name, pool.agents, pool.gpus, pool.model, pool.vram) == ("test", 2, 4, "A10", 24 << 30)
    assert (pool.labels, pool.taints) == ({"zone": "a"}, {"team": "ml"})


def test_a_name_alone_is_a_pool_of_one_gpu():
    pool = parse_pool("lab")
    assert (pool.agents, pool.gpus, pool.model, pool.vram) == (1, 1, "A10", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no name"),
        (":gpus=1", "is no name"),
        ("test:gpus", "'gpus' is not understood"),
        ("test:gpus=x", "'gpus=x' is not understood"),
        ("test:gpus=0", "gpus=0; accepted: 1 to 64"),
        ("test:gpus=1,gpus=2", "gpus is given twice"),
        ("test:label.a=1,label.a=2", "label.a is given twice"),
        ("test:agents=501", "agents=501; accepted: 0 to 500"),
        ("test:model=A1000", "GPU model 'A1000' is unknown"),
        ("test:vram=4G", "4G"),
        ("test:colour=red", "'colour=red' is not understood"),
        ("a/b:gpus=1", "is no name"),
    ],
)
def test_a_wrong_pool_is_refused_in_one_line(text, said):
    with pytest.raises(BadSpec) as caught:
        parse_pool(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pool_cannot_be_given_twice():
    with pytest.raises(BadSpec, match="given twice"):
        parse_pools(["a:gpus=1", "a:gpus=2"])


def test_without_pools_there_is_the_default_one():
    assert [pool.name for pool in parse_pools([])] == ["test"]


@pytest.mark.parametrize("name", ["", "-x", "a/b", "..", "a" * 33, "ä"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(BadSpec):
        check_name(name)


def test_a_spec_survives_being_written_and_read():
    spec = SandboxSpec(name="x", slurm="real", pools=parse_pools(["a:gpus=2,label.x=y", "b:vram=3"]), licenses=True)
    assert SandboxSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec
