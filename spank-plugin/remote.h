/* The compute node's side, in slurmstepd: opens the session file and gives the job its session, or fails it. */
#ifndef JUICE_REMOTE_H
#define JUICE_REMOTE_H

#include "arguments.h"

#include <slurm/spank.h>

/*
 * For slurm_spank_init, the only place that runs as root, comes before the tasks and whose variables reach the batch
 * script and every step. It decides what becomes of the step, but does not fail it: a plugin that fails here makes Slurm
 * drain the node (and, for a batch job, call it COMPLETED).
 */
void remote_init(spank_t spank, const struct arguments *arguments);

/* For slurm_spank_task_init, where a failure fails the job and leaves the node alone. 0, or -1 to fail the task. */
int remote_task_init(spank_t spank);

/* Frees what is held. */
void remote_end(void);

#endif
