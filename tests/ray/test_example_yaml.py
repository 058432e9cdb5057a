"""`RAY_FAKE_CLUSTER=1 ray start --autoscaling-config=./example.yaml --head --block`, as Ray's documentation has it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from fake_cluster.process_tree import ProcessTree, command_line, descendants

from .conftest import living, until

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("autoscaler_v2", ["0", "1"], ids=["v1", "v2"])
def test_the_example_works_on_the_command_line(tmp_path: Path, autoscaler_v2: str) -> None:
    config = tmp_path / "example.yaml"
    config.write_text((ROOT / "example.yaml").read_text())
    temp_dir = Path(f"/tmp/example-{os.getpid()}-{autoscaler_v2}")
    tree = ProcessTree(remove=[temp_dir])
    environment = {
        **os.environ,
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": autoscaler_v2,
        "RAY_CLOUD_INSTANCE_ID": "f" * 51 + "00000",  # this one and the next for Ray's v2 only
        "RAY_NODE_TYPE_NAME": "ray.head.default",
        "RAY_START_HOOK": "fake_cluster.ray_start_hook.prepare",  # no fixed port for Ray Client
        "AUTOSCALER_METRIC_PORT": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),
        "PYTHONPATH": str(ROOT),
    }
    ports = ["--port=0", "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--autoscaling-config={config}", "--head"]
    command += ["--block", f"--temp-dir={temp_dir}", "--num-cpus=2", *ports]
    tree.start(command, env=environment, log=tmp_path / "log")
    try:
        until((temp_dir / "ray_current_cluster").exists, "the cluster")
        ray.init((temp_dir / "ray_current_cluster").read_text(), log_to_driver=False)

        @ray.remote(num_cpus=0)
        def labels() -> dict[str, str]:
            return dict(ray.get_runtime_context().get_node_labels())

        by_label = labels.options(num_gpus=4, label_selector={"juice-gpu-model": "A100-80"}).remote()
        found = ray.get(by_label, timeout=90)
        assert (found["juice-pool"], found["ray.io/node-group"]) == ("training", "juice_training")
        by_resource = labels.options(resources={"juice_pool_test": 1}).remote()
        assert ray.get(by_resource, timeout=90)["juice-gpus"] == "1"

        # An edit takes effect while the cluster runs.
        edited = yaml.safe_load(config.read_text())
        edited["available_node_types"]["cpu_node"]["min_workers"] = 2
        (tmp_path / "edited.yaml").write_text(yaml.safe_dump(edited))
        os.replace(tmp_path / "edited.yaml", config)
        until(lambda: ray.cluster_resources().get("slurm_node", 0) == 2, "two nodes after the edit")
        ray.shutdown()

        # SIGTERM to `ray start --block` leaves nothing behind, as it does with Ray's own provider.
        pids = [process.pid for process in tree.processes()]
        assert sum(command_line(pid)[0].endswith("/raylet") for pid in pids if command_line(pid)) == 5
        main = next(process for process in descendants(tree.keeper_pid or 0) if process.ppid == tree.keeper_pid)
        os.kill(main.pid, signal.SIGTERM)
        until(lambda: not living(pids), "the end of all processes")
    finally:
        ray.shutdown()
        tree.stop()
