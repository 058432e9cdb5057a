/*
 * The two lines of slurm.conf that the remote side needs. slurmstepd knows them, but offers them to no plugin, and
 * asking slurmctld for every step would be a query per task launch.
 */
#ifndef JUICE_SLURM_CONF_H
#define JUICE_SLURM_CONF_H

#include <stdbool.h>

struct slurm_conf {
	char cluster[256]; /* ClusterName in lower case, as Slurm itself uses it */
	char user[256];    /* SlurmUser, a name or a number; "root" when not set */
};

/* Reads slurm.conf at `path`, and the files that it includes. False when it cannot be read or names no cluster. */
bool slurm_conf_read(const char *path, struct slurm_conf *conf);

#endif
