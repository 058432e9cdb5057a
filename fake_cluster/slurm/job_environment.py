"""The environment of a job's processes on its node: the submitter's, and what slurmd adds."""

from __future__ import annotations

from fake_cluster.slurm.hook_environment import cpus_per_node, host_list
from fake_cluster.slurm.rules_jobs import ClusterConfig, JobRecord


def job_environment(job: JobRecord, config: ClusterConfig) -> dict[str, str]:
    """What the batch script, or the command of srun, gets. Nothing of Juice: the node side adds that."""
    spec = job.spec
    env: dict[str, str] = dict(spec.payload.get("environment", {}))
    here = job.nodes[0]
    tasks = [max(1, cpus // spec.cpus_per_task) for cpus in job.cpus.values()]
    env |= {
        "SLURM_CLUSTER_NAME": config.cluster_name,
        "SLURM_CPUS_ON_NODE": str(job.cpus[here]),
        "SLURM_JOBID": str(job.job_id),
        "SLURM_JOB_CPUS_PER_NODE": cpus_per_node(job.cpus.values()),
        "SLURM_JOB_GID": str(spec.group_id),
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOB_NAME": spec.name,
        "SLURM_JOB_NODELIST": host_list(job.nodes),
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_JOB_PARTITION": config.partition,
        "SLURM_JOB_UID": str(spec.user_id),
        "SLURM_JOB_USER": spec.user_name,
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": str(len(job.nodes)),
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": host_list(job.nodes),
        "SLURM_NPROCS": str(spec.ntasks),
        "SLURM_NTASKS": str(spec.ntasks),
        "SLURM_PROCID": "0",
        "SLURM_SUBMIT_DIR": spec.work_dir,
        "SLURM_TASKS_PER_NODE": cpus_per_node(tasks),
        "SLURMD_NODENAME": here,
    }
    if job.restarts:
        env["SLURM_RESTART_COUNT"] = str(job.restarts)
    if spec.cpus_per_task > 1:
        env["SLURM_CPUS_PER_TASK"] = str(spec.cpus_per_task)
    if spec.array_tasks is not None:
        env |= {
            "SLURM_ARRAY_JOB_ID": str(job.array_job_id),
            "SLURM_ARRAY_TASK_ID": str(job.array_task_id),
            "SLURM_ARRAY_TASK_COUNT": str(len(spec.array_tasks)),
            "SLURM_ARRAY_TASK_MAX": str(max(spec.array_tasks)),
            "SLURM_ARRAY_TASK_MIN": str(min(spec.array_tasks)),
        }
    if job.het_job_id is not None:
        # In every component SLURM_JOB_ID is the leader's.
        env["SLURM_JOB_ID"] = env["SLURM_JOBID"] = str(job.het_job_id)
        env["SLURM_HET_JOB_ID"] = str(job.het_job_id)
        env["SLURM_HET_JOB_OFFSET"] = str(job.het_offset)
    return env
