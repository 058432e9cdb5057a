/* The submitting side: srun, sbatch and salloc. Takes the options, checks them, hands them to the hooks. */
#ifndef JUICE_SUBMIT_H
#define JUICE_SUBMIT_H

#include "options.h"

#include <slurm/spank.h>

/*
 * Says to the remote side which components of a (heterogeneous) job asked for a session, as their offsets: "0,2". It
 * only decides whether to wait for a session file that is not there yet. Its SLURM_ prefix takes it through
 * --export=NONE and NIL.
 */
#define SUBMIT_HINT "SLURM_JUICE_COMPONENTS"

/* One option from the command line. 0, or -1 when it is wrong (the user has been told). */
int submit_option(enum option option, const char *text);

/*
 * All options of one component have been given: checks them and hands them over. `nested`: this is an srun inside a
 * job, which adds a step and no session. 0, or -1 when the job must not be submitted (the user has been told).
 */
int submit_component(spank_t spank, bool nested);

/* Frees what is held. */
void submit_end(void);

#endif
