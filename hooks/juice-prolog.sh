#!/bin/sh
# PrologSlurmctld for Juice. slurmctld runs it before every job of the cluster starts, whether Juice is used or not.
#
# What it promises:
# - A job without Juice options is let through at once: nothing is read, no program is started.
# - Exit 0: the job starts. It has its GPUs, or the plugin on the node fails it with the reason that it finds sealed.
# - Exit 1: the job cannot start now; Slurm requeues it and then runs juice-epilog.sh.
# - slurmctld gives it no PATH and no HOME, only SLURM_* and SPANK_* variables. The latter hold what a user chose to put
#   there: nothing in this file expands one unquoted, and juice_hook.py checks them.
# - Settings come from juice-config.sh beside this file, and from nowhere else.
#
# By hand it runs any verb of juice_hook.py with these settings: juice-prolog.sh check

if [ $# -eq 0 ]; then
    [ -n "${SPANK_JUICE_POOL+x}${SPANK_JUICE_GPU_COUNT+x}${SPANK_JUICE_VRAM+x}" ] || exit 0
    set -- prolog
fi

# A file that is opened while 0, 1 or 2 is closed would get that number and receive what was meant for the terminal.
{ true <&0; } 2>/dev/null || exec </dev/null
{ true >&1; } 2>/dev/null || exec >/dev/null
{ true >&2; } 2>/dev/null || exec 2>/dev/null
umask 022 # whatever the caller's: byte code that Python keeps beside juice_hook.py must not be open to others

case $0 in
*/*) juice_dir=${0%/*} ;;
*) juice_dir=. ;;
esac
if [ ! -e "$juice_dir/juice_hook.py" ] && [ -h "$0" ]; then # a link to this file alone: its folder is where it points
    juice_self=$(/usr/bin/readlink -f -- "$0") && juice_dir=${juice_self%/*}
fi

juice_fail() {
    echo "juice: $1: $2" >&2
    exit 1
}

unset JUICE_CONTROLLER JUICE_TOKEN JUICE_TOKEN_FILE JUICE_STATE_DIR JUICE_KEY_FILE JUICE_CA_FILE JUICE_WAIT JUICE_POOLS \
    JUICE_CLUSTER JUICE_LOG JUICE_PYTHON JUICE_ALLOW_HTTP
JUICE_CONFIG=$juice_dir/juice-config.sh
[ -r "$JUICE_CONFIG" ] || juice_fail "$JUICE_CONFIG" "cannot be read; SlurmUser must be able to (chown, chmod 0640)"
# A configuration that ends the shell, by a syntax error or an exit of its own, must not look like a hook that is content.
trap 'juice_fail "$JUICE_CONFIG" "ended the hook; it may only set variables: sh -n $JUICE_CONFIG shows a syntax error"' EXIT
# shellcheck source-path=SCRIPTDIR source=juice-config.sh disable=SC1091
. "$JUICE_CONFIG"
trap - EXIT

juice_token=${JUICE_TOKEN-}
unset JUICE_TOKEN # from here on it is in this shell and in the pipe below only, even if juice-config.sh exports it
JUICE_TOKEN_FD=3
export JUICE_CONFIG JUICE_TOKEN_FD
for juice_name in CONTROLLER TOKEN_FILE STATE_DIR KEY_FILE CA_FILE WAIT POOLS CLUSTER LOG ALLOW_HTTP; do
    export "JUICE_$juice_name"
done
[ -x "${JUICE_PYTHON:=/usr/bin/python3}" ] || juice_fail "$JUICE_PYTHON" "cannot be run; set JUICE_PYTHON in $JUICE_CONFIG"

# Imported rather than run as a script, so that Python keeps its byte code. Neither the collection of garbage nor taking
# the interpreter down in good order is worth its time here.
exec "$JUICE_PYTHON" -I -S -c 'import gc, os, sys
gc.disable()
sys.path.append(sys.argv.pop(1))
import juice_hook
os._exit(juice_hook.main(sys.argv[1:]))' "$juice_dir" "$@" 3<<EOF
$juice_token
EOF
