/* The compute node's side, in slurmstepd: opens the session file and gives the job its session, or fails it. */
#ifndef JUICE_REMOTE_H
#define JUICE_REMOTE_H

#include "arguments.h"

#include <slurm/spank.h>

/*
 * For slurm_spank_init, which runs as root, once for all tasks of the node: opens the session file if it is there. It
 * neither fails nor waits. A plugin that fails here makes Slurm drain the node (and call a batch job COMPLETED); one that
 * waits keeps slurmstepd from hearing of scancel, whereupon slurmctld takes the node for dead.
 */
void remote_init(spank_t spank, const struct arguments *arguments);

/*
 * For slurm_spank_task_init_privileged, which runs as root in the process of each task, which scancel can kill: waits
 * for a session file that was not there yet. A failure here would be ignored by Slurm.
 */
void remote_task_init_privileged(spank_t spank, const struct arguments *arguments);

/* For slurm_spank_task_init, where a failure fails the job and leaves the node alone. 0, or -1 to fail the task. */
int remote_task_init(spank_t spank);

/* Frees what is held. */
void remote_end(void);

#endif
