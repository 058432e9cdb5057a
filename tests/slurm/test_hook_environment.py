"""The environment of the hooks, to the letter, on both back ends; and the parts of hook_environment.py."""

from __future__ import annotations

import os

import pytest

from fake_cluster.slurm.hook_environment import cpus_per_node, hook_environment, host_list, release_number
from fake_cluster.slurm.interface import JobState
from fake_cluster.slurm.rules_jobs import ClusterConfig, Hook, JobRecord, JobSpec

ALWAYS = {
    "SLURM_CLUSTER_NAME",
    "SLURM_JOBID",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_GID",
    "SLURM_JOB_GROUP",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_RESTART_COUNT",
    "SLURM_JOB_UID",
    "SLURM_JOB_USER",
    "SLURM_JOB_WORK_DIR",
    "SLURM_SCRIPT_CONTEXT",
}
BATCH = {"SLURM_JOB_STDIN", "SLURM_JOB_STDOUT"}
EPILOG = {"SLURM_JOB_DERIVED_EC", "SLURM_JOB_EXIT_CODE", "SLURM_JOB_EXIT_CODE2"}
ARRAY = {f"SLURM_ARRAY_{name}" for name in ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MAX", "TASK_MIN", "TASK_STEP")}
SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}  # what /bin/sh adds by itself
NEWER = {"SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_JOB_OVERSUBSCRIBE", "SLURM_JOB_SLUID"}


def names(environment):
    return set(environment) - SHELL - NEWER


def test_prolog_of_a_batch_job_gets_these_variables_and_no_others(bench):
    bench.start()
    env = dict(os.environ) | {"MINE": "1", "SPANK_MINE": "2", "LD_LIBRARY_PATH": "/nowhere"}
    job_id = bench.submit("true", "--job-name=a name", "--ntasks=2", env=env)
    assert bench.ended(job_id).state is JobState.COMPLETED
    (prolog,) = bench.environments("prolog", job_id)
    assert names(prolog) == ALWAYS | BATCH
    expected = {
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOBID": str(job_id),
        "SLURM_JOB_NAME": "a name",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_CPUS_PER_NODE": "2",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_ACCOUNT": "(null)",
        "SLURM_JOB_WORK_DIR": str(bench.directory),
        "SLURM_JOB_STDIN": "/dev/null",
        "SLURM_SCRIPT_CONTEXT": "prolog_slurmctld",
        "SLURM_CLUSTER_NAME": "juicesim",
    }
    assert {name: prolog[name] for name in expected} == expected


def test_epilog_gets_the_exit_code_besides(bench):
    bench.start()
    job_id = bench.submit("exit 4")
    bench.ended(job_id)
    (epilog,) = bench.environments("epilog", job_id)
    assert names(epilog) == ALWAYS | BATCH | EPILOG
    assert epilog["SLURM_SCRIPT_CONTEXT"] == "epilog_slurmctld"
    codes = [epilog[name] for name in ("SLURM_JOB_EXIT_CODE", "SLURM_JOB_EXIT_CODE2", "SLURM_JOB_DERIVED_EC")]
    assert codes == ["1024", "4:0", "0"]


def test_interactive_job_has_no_input_or_output(bench):
    bench.start()
    found: list[int] = []
    assert bench.slurm.srun(["/bin/true"], on_job_id=found.append).returncode == 0
    bench.until_journal(found[0], "epilog ends 0")
    (prolog,) = bench.environments("prolog", found[0])
    assert names(prolog) == ALWAYS
    assert prolog["SLURM_JOB_NAME"] == "true"


def test_array_task(bench):
    bench.start()
    array_id = bench.submit("true", "--array=1-5:2")
    tasks = bench.until(
        "all have ended", lambda: (done := [j for j in bench.slurm.jobs() if j.state.ended]) and len(done) == 3 and done
    )
    for task in tasks:
        (prolog,) = bench.environments("prolog", task.job_id)
        assert names(prolog) == ALWAYS | BATCH | ARRAY
        assert prolog["SLURM_ARRAY_JOB_ID"] == str(array_id)
        assert prolog["SLURM_ARRAY_TASK_ID"] == str(task.array_task_id)
        assert [prolog[f"SLURM_ARRAY_TASK_{x}"] for x in ("COUNT", "MIN", "MAX", "STEP")] == ["3", "1", "5", "2"]


@pytest.mark.parametrize("names_given", [["node1"], ["node2", "node1", "node3", "node5"], ["a", "node07", "node08"]])
def test_host_list_is_slurms(names_given):
    expected = {1: "node1", 4: "node[1-3,5]", 3: "node[07-08],a"}
    assert host_list(names_given) == expected[len(names_given)]


def test_cpus_per_node_counts_repeats():
    assert cpus_per_node([4, 4, 1]) == "4(x2),1"


@pytest.mark.parametrize(("text", "number"), [("22.05", (22, 5)), ("24.11.5", (24, 11))])
def test_release_number(text, number):
    assert release_number(text) == number


def test_release_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="'new'"):
        release_number("new")


def record(**spec):
    job = JobRecord(7, JobSpec(name="x", user_id=1000, user_name="u", group_name="g", **spec), 1, 100.0)
    job.cpus = {"node1": 1}
    job.start_time = 200.0
    return job


@pytest.mark.parametrize(("release", "more"), [("22.05", 0), ("23.11", 0), ("24.11.5", 3), ("25.05", 3), ("25.11", 4)])
def test_later_releases_set_more(release, more):
    config = ClusterConfig({"node1": 4}, release=release)
    env = hook_environment(record(), Hook.PROLOG, config)
    assert len(NEWER & set(env)) == more
    assert set(env) - NEWER == ALWAYS | BATCH


def test_prefix_of_what_the_plugin_passes_is_forced():
    job = record(
        spank_env={"PATH": "/evil", "JUICE_POOL": "a;b`c`\nd"}, spank_options={"juice_juice_pool": "a;b`c`\nd"}
    )
    env = hook_environment(job, Hook.PROLOG, ClusterConfig({"node1": 4}))
    assert "PATH" not in env
    assert env["SPANK_PATH"] == "/evil"
    assert env["SPANK_JUICE_POOL"] == env["SPANK__SLURM_SPANK_OPTION_juice_juice_pool"] == "a;b`c`\nd"


def test_juice_options_reach_both_hooks(simulated):
    simulated.start()
    # The job itself fails: this node has no session file for it.
    job_id = simulated.submit("true", "--juice-pool=test pool", "--juice-vram=2.5")
    simulated.ended(job_id)
    for kind in ("prolog", "epilog"):
        (env,) = simulated.environments(kind, job_id)
        spank = {name: value for name, value in env.items() if name.startswith("SPANK_")}
        assert spank == {
            "SPANK_JUICE_POOL": "test pool",
            "SPANK_JUICE_GPU_COUNT": "1",
            "SPANK_JUICE_VRAM": "2684354560",
        }


def test_hooks_run_in_the_log_directory_in_a_process_group_of_their_own(bench):
    bench.start(prolog="read -r _ _ _ _ group _ < /proc/$$/stat; echo $$ $group $(pwd) > {directory}/where")
    bench.ended(bench.submit())
    pid, group, directory = (bench.records / "where").read_text().split()
    assert pid == group
    assert directory.rsplit("/", 1)[-1] == "log"
