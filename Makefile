# shardwright: every command a developer needs. A bare `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STATE  ?= .sandbox
NODES  ?= sandbox/fleets/demo.yaml
# `make sandbox-up OPERATOR=0` leaves the operator out.
OPERATOR ?= 1
# `make sandbox-up REAL=2` starts two real nodes besides (root, Linux; see sandbox/README.md).
REAL ?= 0
RUN    := PYTHONPATH=sandbox $(BIN)/python
SYSTEM := openmpi-bin python3-mpi4py python3-numpy python3-yaml python3-click python3-prometheus-client
FORMATTED := operator sandbox tests hack
# `make test` runs this many modules of tests at a time; each process has a control plane of its own.
PROCESSES ?= 2
# Stamps of environments that have what requirements/dev.txt and requirements/moto.txt ask for.
READY  := $(VENV)/.ready
MOTO   := $(VENV)-moto/.ready

.PHONY: help
help: ## list these targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(MOTO): requirements/moto.txt
	@test -x $(VENV)-moto/bin/python || $(PYTHON) -m venv $(VENV)-moto
	@$(VENV)-moto/bin/python -m pip install --quiet --require-hashes -r requirements/moto.txt
	@touch $@

.PHONY: install
install: $(READY) $(MOTO) ## make the virtual environment with the locked dependencies

.PHONY: system
system: ## as root on Debian: the system's packages that some tests need (Open MPI and its Python)
	@dpkg -s $(SYSTEM) >/dev/null 2>&1 || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(SYSTEM) >/dev/null; }

.PHONY: lock
lock: $(READY) ## work the locked requirements out anew, from versions at least a week old
	@hack/lock.sh $(BIN)

.PHONY: format
format: $(READY) ## format the code
	$(BIN)/ruff format $(FORMATTED)
	$(BIN)/ruff check --fix $(FORMATTED)

.PHONY: generate
generate: $(READY) ## write the CRD and the chart's copy of it
	$(BIN)/shardwright crd --output crds/llmdeployments.yaml
	$(BIN)/python hack/sync_chart.py
	$(BIN)/python hack/engine_flags.py

.PHONY: lint
lint: $(READY) ## format, lint, types, import contracts, generated files
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(RUN) -m mypy
	$(BIN)/lint-imports
	$(BIN)/shardwright crd --check
	$(BIN)/python hack/sync_chart.py --check
	$(BIN)/python hack/engine_flags.py --check

.PHONY: check
check: lint ## lint, and the unit tests
	$(BIN)/pytest -q tests/unit

.PHONY: test
test: $(READY) $(MOTO) ## every test that this machine can run (builds the control plane once)
	$(BIN)/pytest -q -n $(PROCESSES)

.PHONY: soak
soak: $(READY) ## the long runs: many seeds of the kill test, many random clusters
	$(BIN)/pytest -q -m soak --soak tests

.PHONY: e2e-all
e2e-all: $(READY) ## the end-to-end tests, with those that are too long for `make test`
	$(BIN)/pytest -q -n $(PROCESSES) -m e2e --e2e-all tests

.PHONY: bench
bench: $(READY) ## 200 and 700 deployments against bare pods, in one run; how long a plan takes
	$(RUN) tests/perf/bench.py
	$(RUN) tests/perf/plan_speed.py

.PHONY: truth
truth: $(READY) ## measured memory against the memory model, row by row
	$(RUN) -m tests.support.truth

.PHONY: demo
demo: $(READY) ## build, start a sandbox, and watch a 70B model being split, built, proven and moved
	$(RUN) -m shardwright_sandbox.demo

.PHONY: sandbox-up
sandbox-up: $(READY) ## start sandbox and operator (OPERATOR=0: without; NODES=file.yaml; REAL=2)
	$(RUN) -m shardwright_sandbox up --state $(STATE) --nodes $(NODES) --real $(REAL) \
	  $(if $(filter 0,$(OPERATOR)),--no-operator,--operator)

.PHONY: sandbox-down
sandbox-down: $(READY) ## stop the sandbox and leave nothing
	$(RUN) -m shardwright_sandbox down --state $(STATE)

.PHONY: image
image: $(READY) ## build the operator's image without Docker into dist/image
	$(BIN)/python -m hack.image
