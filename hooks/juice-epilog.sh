#!/bin/sh
# EpilogSlurmctld for Juice. slurmctld runs it after every job of the cluster, and after each prolog that failed.
#
# What it promises:
# - A job without Juice options is let through at once: nothing is read, no program is started.
# - What this start of the job, or an earlier one, holds at the controller is released and its session file removed.
#   A later start of the same job, whose prolog may run already, is not touched.
# - Exit 1: something could not be released. Slurm only logs that; the journal keeps it, and a timer that runs
#   `juice_hook.py reconcile` releases it later.
#
# Settings, environment and hostile values: see juice-prolog.sh, which does the rest.

[ -n "${SPANK_JUICE_POOL+x}${SPANK_JUICE_GPU_COUNT+x}${SPANK_JUICE_VRAM+x}" ] || exit 0

case $0 in
*/*) juice_dir=${0%/*} ;;
*) juice_dir=. ;;
esac
if [ ! -e "$juice_dir/juice-prolog.sh" ] && [ -h "$0" ]; then
    juice_self=$(/usr/bin/readlink -f -- "$0") && juice_dir=${juice_self%/*}
fi
exec /bin/sh "$juice_dir/juice-prolog.sh" epilog
