# Two commands do all the set-up: `make demo` and `make test`. Everything else builds on the same environment.
#
#   make demo     environment, installation, then the main job
#   make test     what the tests need (as root on Debian or Ubuntu also apt packages), then the tests
#   make slurm-tree   a Slurm 24.11 for the tests, in TREE=
#   make check    format, lint, types, shell scripts, hook syntax
#   make bench    the benchmarks (ratios; see docs/performance.md)
#   make clean    remove what make made
#
# PYTHON=python3.12 chooses an interpreter; ARGS="-k units" goes to pytest.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
# As root it lies where every user can run it: the tests submit jobs as others, and a checkout may be closed to them.
TREE   ?= $(if $(filter 0,$(shell id -u)),/var/cache/juice-sim/slurm-24.11,.slurm-24.11)

.PHONY: demo test check format bench clean install install-dev system-packages slurm-tree wheel
.DEFAULT_GOAL := demo

$(BIN)/python:
	@sh .ci/make-venv "$(PYTHON)" "$(VENV)"

# The stamps make a second run start at once; a changed pyproject.toml installs again.
.stamps/install: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@mkdir -p .stamps && touch $@

.stamps/install-dev: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@mkdir -p .stamps && touch $@ .stamps/install

install: .stamps/install
install-dev: .stamps/install-dev

demo: install
	$(BIN)/juice-sim run scenarios/quickstart.yaml

system-packages:
	@sh .ci/system-packages

# Slurm 24.11 beside the system's own: fetched and verified by apt, unpacked and relocated, neither root nor chroot.
# A machine that cannot have it (no apt, no network) goes on without; the tests that need it then say so.
slurm-tree: install
	@test -e $(TREE)/usr/sbin/slurmctld || mkdir -p $(dir $(abspath $(TREE)))
	@test -e $(TREE)/usr/sbin/slurmctld || $(BIN)/python -m fake_cluster.slurm.trixie_tree $(TREE) \
	    || echo "slurm-tree: not made; tests on Slurm 24.11 are skipped" >&2
	@echo "JUICE_SIM_SLURM_TREE=$(abspath $(TREE))"

test: install-dev system-packages slurm-tree
	JUICE_SIM_SLURM_TREE=$(abspath $(TREE)) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

check: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/shellcheck -s sh hooks/*.sh .ci/make-venv .ci/system-packages
	$(BIN)/shellcheck .ci/run
	$(BIN)/vermin --quiet --no-tips --target=3.6- --violations hooks/juice_hook.py
	$(BIN)/ruff check --isolated --select E,F,PIE,RET,SIM,W --line-length 120 --target-version py37 hooks/juice_hook.py

format: install-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install-dev
	$(BIN)/python -m benchmarks

wheel: install-dev
	$(BIN)/python -m build --wheel --quiet

clean:
	rm -rf $(VENV) .stamps build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
