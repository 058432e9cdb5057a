# shellcheck shell=sh disable=SC2034
# Settings of the Juice hooks for Slurm. Read by juice-prolog.sh and juice-epilog.sh, as shell.
#
# Owner: SlurmUser or root. Mode: 0640 or stricter, above all when it holds a token.
# After a change: `juice_hook.py check` says whether the installation can work.

# The address of the Juice controller. Plain http is accepted for loopback and private addresses only.
JUICE_CONTROLLER=https://juice.example.org

# The M2M token with which the hooks ask for sessions (juice m2m create -d slurm), in a file of mode 0400 that belongs to
# SlurmUser. The permission create_session in each pool is enough.
JUICE_TOKEN_FILE=/etc/juice/token
# ... or here. Then this file must not be readable by others.
#JUICE_TOKEN=

# The directory for shared state, the same as in plugstack.conf: seen by slurmctld and by all nodes, owned by SlurmUser,
# mode 0755. A second slurmctld (backup) must see the same one.
JUICE_STATE_DIR=/opt/juice/.data

# The key that seals the session files: 32 random bytes, the same on all nodes, owner root or SlurmUser, mode 0400.
# `juice_hook.py keygen` makes one.
JUICE_KEY_FILE=/etc/juice/session.key

# The PEM file of the CA that signed the controller's certificate, if it is not one of the system's.
#JUICE_CA_FILE=/etc/juice/ca.pem

# How many seconds a job's start waits for a GPU before Slurm is told to requeue it. PrologEpilogTimeout in slurm.conf
# should be at least 10 seconds longer.
JUICE_WAIT=20

# Pools by name, for a controller that cannot list them: JUICE_POOLS='test=UUID big=UUID'
#JUICE_POOLS=

# The cluster's name in the names of sessions, where two clusters of the same name use one controller.
#JUICE_CLUSTER=

# The log file of the hooks; - is standard error. Default: hooks.log in JUICE_STATE_DIR.
#JUICE_LOG=/var/log/slurm/juice.log

# The Python (3.6 or later) that runs juice_hook.py.
#JUICE_PYTHON=/usr/bin/python3

# 1 permits plain http to public addresses, where anyone on the way can read the token.
#JUICE_ALLOW_HTTP=0
