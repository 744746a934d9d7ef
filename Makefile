# embedfleet's verbs for people who work on it. Ops use pyinfra itself: pyinfra inventory/prod.py deploy.py
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYINFRA := $(BIN)/pyinfra inventory/docker.py

.PHONY: demo test test-all test-vm unit lint targets mirror down clean-targets env conda-lock docs bench

env: $(VENV)/.ok  ## the pinned Python environment

$(VENV)/.ok: requirements-dev.lock
	$(PYTHON) -c 'import sys; sys.exit("embedfleet needs Python 3.11 or newer; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes --only-binary=:all: -r requirements-dev.lock
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true  # pip would, on one core
	touch $@

demo: env  ## from nothing to right embeddings, twice: the second deploy changes nothing
	$(BIN)/python -m tests.targets.rig up x86
	$(PYINFRA) --limit "*x86" deploy.py -y
	$(PYINFRA) --limit "*x86" deploy.py -y

test: env  ## everything that CI runs
	$(MAKE) --no-print-directory -j2 lint targets HOSTS=
	$(BIN)/python -m pytest -m "not fault and not vm"

test-all: env  ## that, and bad input and damage on a host that serves, drivers in every way, containers
	$(MAKE) --no-print-directory -j2 lint targets HOSTS=
	$(BIN)/python -m pytest -m "not vm"

test-vm: env  ## an emulated arm64 machine: modules, initramfs, kernel command line, reboots, power cuts (not in CI: minutes)
	$(BIN)/python -m pytest -m vm tests/vm

unit: env  ## seconds, no host
	$(BIN)/python -m pytest tests/unit

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=files $(BIN)/mypy -p embedfleetctl

targets: env  ## start the test targets: make targets, or make targets HOSTS="x86 grace"
	$(BIN)/python -m tests.targets.rig up $(HOSTS)

mirror: env  ## start the local mirror alone
	$(BIN)/python -m tests.targets.rig mirror

down: env  ## stop them; caches stay
	$(BIN)/python -m tests.targets.rig down

clean-targets: env  ## remove containers, networks and images that they made
	$(BIN)/python -m tests.targets.rig clean

CHANNEL ?= https://conda.anaconda.org/conda-forge
SUBDIR ?= linux-64

conda-lock: env  ## the conda environment of hosts, locked: make conda-lock SUBDIR=linux-aarch64 CHANNEL=https://...
	$(BIN)/python -m embedfleet.conda_lock $(CHANNEL) $(SUBDIR) files/locks/conda-$(SUBDIR).lock

docs: env  ## the generated pages
	$(BIN)/python -m embedfleet.settings_page
	$(BIN)/python -m embedfleet.matrix_page

bench: env  ## what a no-op costs over ssh, against Ansible (needs a deployed target: make demo)
	$(BIN)/python -m bench.compare
