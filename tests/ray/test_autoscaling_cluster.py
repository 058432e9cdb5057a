"""Clusters that really run. Each costs a few seconds, so tests share them where they do not disturb each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fake_cluster.autoscaling import AutoscalingCluster
from fake_cluster.process_tree import ProcessTree, command_line

from .conftest import living, until

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


def node_type(max_workers: int = 2, min_workers: int = 0, **resources: float) -> dict[str, Any]:
    return {"resources": resources, "node_config": {}, "min_workers": min_workers, "max_workers": max_workers}


@pytest.fixture(scope="module", params=[False, True], ids=["v1", "v2"])
def documented(request: pytest.FixtureRequest) -> Iterator[AutoscalingCluster]:
    """The example of Ray's documentation, with a custom resource and a label on the head besides."""
    store = 1024**3
    cluster = AutoscalingCluster(
        head_resources={"CPU": 2, "license_server": 3},
        worker_node_types={
            "cpu_node": node_type(CPU=4, object_store_memory=store),
            "gpu_node": node_type(CPU=2, GPU=1, object_store_memory=store),
            "tpu_node": node_type(CPU=2, TPU=4, object_store_memory=store),
            "tpu_v5e_node": node_type(CPU=4, TPU=8, object_store_memory=store),
            "tpu_v6e_node": node_type(CPU=4, TPU=8, object_store_memory=store),
        },
        autoscaler_v2=request.param,
        head_labels={"juice-role": "head"},
        max_workers=10,
    )
    with cluster:
        yield cluster
        pids = cluster.pids
    assert living(pids) == []


@pytest.fixture
def driver(documented: AutoscalingCluster) -> Iterator[AutoscalingCluster]:
    """The same, with this process connected to it."""
    ray.init(documented.address, log_to_driver=False)
    yield documented
    ray.shutdown()


def test_the_documented_example_runs(driver: AutoscalingCluster) -> None:
    @ray.remote
    def accelerators() -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "none")

    tasks = [
        accelerators.options(num_gpus=1).remote(),
        accelerators.options(num_cpus=3).remote(),
        accelerators.options(resources={"TPU": 4}).remote(),
        accelerators.options(resources={"TPU": 8}).remote(),
    ]
    answers = ray.get(tasks, timeout=120)
    assert answers[0] == "0"
    driver.wait_for_nodes(0, timeout=90)  # idle nodes go


def test_the_head_has_its_custom_resources_and_labels(driver: AutoscalingCluster) -> None:
    head = next(node for node in driver.status().nodes if node.is_head)
    assert head.resources["license_server"] == 3
    assert head.resources["CPU"] == 2
    assert head.labels["juice-role"] == "head"
    assert head.node_type == "ray.head.default"
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    assert nodes[head.node_id]["Labels"]["juice-role"] == "head"
    assert driver.config["available_node_types"]["ray.head.default"]["resources"]["license_server"] == 3


def test_an_actor_with_a_runtime_env_gets_it(driver: AutoscalingCluster) -> None:
    """The runtime-env agent of a node is started only now."""

    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"FLAVOUR": "vanilla"}})
    def flavour() -> str | None:
        return os.environ.get("FLAVOUR")

    assert ray.get(flavour.remote(), timeout=60) == "vanilla"


@pytest.fixture(scope="module", params=[False], ids=["v1"])
def pair(request: pytest.FixtureRequest) -> Iterator[AutoscalingCluster]:
    """Two nodes that have to be there, of one type."""
    types = {"gpu": node_type(CPU=1, GPU=1, min_workers=2, max_workers=3), "cpu": node_type(CPU=4)}
    with AutoscalingCluster({"CPU": 0}, types, autoscaler_v2=request.param, max_workers=3) as cluster:
        cluster.wait_for_nodes(2, node_type="gpu")
        yield cluster


def test_a_killed_node_is_gone_at_once_and_replaced(pair: AutoscalingCluster) -> None:
    before = {node.node_id: node.pid for node in pair.status().workers}
    killed = pair.kill_node(rand=True, random=Random(1))
    assert living([before[killed] or 0]) == []
    pair.wait_for_nodes(2, timeout=60)
    after = {node.node_id for node in pair.status().workers}
    assert killed not in after
    assert len(after & before.keys()) == 1

    by_type = pair.kill_node(node_type="gpu")
    assert by_type in after
    pair.wait_for_nodes(2)
    by_id = max(node.node_id for node in pair.status().workers)
    assert pair.kill_node(by_id) == by_id
    pair.wait_for_nodes(2)


def test_what_cannot_be_killed_is_an_error(pair: AutoscalingCluster) -> None:
    head = next(node for node in pair.status().nodes if node.is_head)
    with pytest.raises(KeyError, match="no living worker node with id"):
        pair.kill_node(head.node_id)
    with pytest.raises(KeyError, match=r"no living worker node of type cpu; living: .*gpu"):
        pair.kill_node(node_type="cpu")
    with pytest.raises(ValueError, match="say which node to kill"):
        pair.kill_node()


def test_an_update_takes_effect_while_the_cluster_runs(pair: AutoscalingCluster) -> None:
    pair.update_config(available_node_types={"gpu": {"min_workers": 3}})
    pair.wait_for_nodes(3, timeout=60)
    pair.update_config({"available_node_types": {"gpu": {"min_workers": 2, "max_workers": 2}}})
    pair.wait_for_nodes(2, timeout=60)
    assert pair.config["available_node_types"]["cpu"]["max_workers"] == 2


def test_waiting_in_vain_shows_what_there_is(pair: AutoscalingCluster) -> None:
    with pytest.raises(
        TimeoutError, match=r"waited 0 s in vain for 7 worker nodes of type gpu\nRay cluster at .*\n  2 gpu"
    ):
        pair.wait_for_nodes(7, timeout=0, node_type="gpu")


@pytest.mark.parametrize("autoscaler_v2", [False], ids=["v1"])
def test_max_workers_is_never_exceeded(autoscaler_v2: bool) -> None:
    types = {"small": node_type(CPU=1, max_workers=2), "large": node_type(CPU=2, max_workers=5)}
    with AutoscalingCluster({"CPU": 0}, types, autoscaler_v2, max_workers=3, idle_timeout_minutes=0.02) as cluster:
        ray.init("auto", log_to_driver=False)

        @ray.remote(num_cpus=1)
        def work() -> int:
            return os.getpid()

        waiting = [work.remote() for _ in range(30)]
        most = 0
        while waiting:
            raylets = [words for pid in cluster.pids if (words := command_line(pid)) and words[0].endswith("/raylet")]
            most = max(most, len(raylets) - 1)
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.05)
        assert most == 3
        ray.shutdown()


def test_a_cluster_starts_again_beside_another_one() -> None:
    with AutoscalingCluster({"CPU": 1}, {}) as other:
        cluster = AutoscalingCluster({"CPU": 1, "mark": 1}, {"cpu": node_type(CPU=1)})
        cluster.start()
        first = cluster.address
        assert os.environ["RAY_ADDRESS"] == first != other.address
        with pytest.raises(RuntimeError, match="runs already"):
            cluster.start()
        cluster.shutdown()
        assert os.environ["RAY_ADDRESS"] == other.address
        cluster.shutdown()
        with pytest.raises(RuntimeError, match="does not run"):
            _ = cluster.address

        cluster.start()
        assert next(node for node in cluster.status().nodes if node.is_head).resources["mark"] == 1
        other.shutdown()
        assert cluster.status().autoscaler_running
        assert os.environ["RAY_ADDRESS"] == cluster.address
        cluster.shutdown()


def test_another_ray_on_the_machine_survives_everything(tmp_path: Path) -> None:
    """Ray's own class runs `ray stop --force`. A driver of ours is killed here, too, and leaves nothing behind."""
    temp_dir = Path(f"/tmp/other-{os.getpid()}")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0"]
    flags = [f"--temp-dir={temp_dir}", "--num-cpus=1", "--include-dashboard=false", "--dashboard-agent-listen-port=0"]
    ports = ["--min-worker-port=0", "--max-worker-port=0"]
    environment = {**os.environ, "RAY_START_HOOK": "fake_cluster.ray_start_hook.prepare", "PYTHONPATH": str(ROOT)}
    stranger = ProcessTree(remove=[temp_dir])
    stranger.start([*command, *flags, *ports], env=environment, log=tmp_path / "log")
    try:
        address_file = temp_dir / "ray_current_cluster"
        until(address_file.exists, "the other Ray")

        driver = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import time; from fake_cluster.autoscaling import AutoscalingCluster\n"
                "cluster = AutoscalingCluster({'CPU': 1}, {'cpu': {'resources': {'CPU': 1}, 'min_workers': 1}})\n"
                "cluster.start(); cluster.wait_for_nodes(1)\n"
                "print(*cluster.pids, flush=True); print(cluster.config_file.parent, flush=True); time.sleep(3600)",
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        directory = Path(driver.stdout.readline().strip())
        assert len(living(pids)) > 5
        assert directory.is_dir()
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        until(lambda: not living(pids), "the end of the killed driver's cluster")
        until(lambda: not directory.exists(), "the removal of its directory")

        with AutoscalingCluster({"CPU": 1}, {}) as ours:
            assert ours.address != address_file.read_text()
        assert stranger.exit_code() is None
        ray.init(address_file.read_text(), log_to_driver=False)
        raylet = ray.get(ray.remote(lambda: os.getppid()).remote(), timeout=60)
        assert raylet in [process.pid for process in stranger.processes()]
    finally:
        ray.shutdown()
        stranger.stop()


@pytest.mark.parametrize("has_token", [False, True], ids=["no token", "a token"])
def test_a_driver_is_let_in_whether_the_user_has_a_token_or_not(tmp_path: Path, has_token: bool) -> None:
    """Ray 2.60 demands tokens where it finds one, and only there; in a process of its own, since Ray remembers."""
    token = tmp_path / "token"
    if has_token:
        token.write_text("0" * 64)
    driver = (
        "import os, ray; from fake_cluster.autoscaling import AutoscalingCluster\n"
        "with AutoscalingCluster({'CPU': 1}, {}) as cluster:\n"
        "    ray.init(cluster.address, log_to_driver=False)\n"
        "    print('mode', ray.get(ray.remote(lambda: os.environ['RAY_AUTH_MODE']).remote(), timeout=120))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    environment |= {"HOME": str(tmp_path), "RAY_AUTH_TOKEN_PATH": str(token)} if has_token else {"HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", driver], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["mode", "token" if has_token else "disabled"]


def test_an_autoscaler_that_dies_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "broken_provider.py").write_text("raise RuntimeError('no nodes today')\n")
    cluster = AutoscalingCluster({"CPU": 1}, {}, provider={"module": "broken_provider.Provider"})
    with pytest.raises((RuntimeError, TimeoutError), match="no nodes today"):
        cluster.start(override_env={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, timeout=30)
    assert cluster.pids == []


def test_a_head_that_does_not_start_is_an_error_with_its_own_words() -> None:
    cluster = AutoscalingCluster({"CPU": 1}, {})
    with pytest.raises(RuntimeError, match=r"`ray start` ended with code 1:\n(.*\n)*.*no_such_hook"):
        cluster.start(override_env={"RAY_START_HOOK": "no_such_hook.prepare"}, timeout=60)
    assert cluster.pids == []
