# Everything runs in .venv with the versions of requirements.lock. Nothing else has to be installed or started.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INFRA := .venv-infra

# One thread per process: with two cores and several processes, more of them wait for each other.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test e2e e2e-infra bench bench-check lint ui docs lock clean help

help:  ## what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(INSTALLED)  ## the whole pipeline on the embedded data; finished stages are not repeated
	$(BIN)/rlhf pipeline run

test: $(INSTALLED) lint  ## style, types, layers and the tests; the long ones: make e2e
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations=15

e2e: $(INSTALLED)  ## the tests with real servers, workers and kill -9
	$(BIN)/python -m pytest -q --durations=15 -m 'not infra and not gpu' tests/e2e tests/integration tests/numerics

e2e-infra: $(INFRA)/.installed  ## the same pipeline on PostgreSQL (Debian: apt-get install postgresql) and an S3 store
	$(INFRA)/bin/python -m pytest -q --durations=15 -m infra tests/e2e

bench: $(INSTALLED)  ## speed and memory beside other tools: an hour on an idle machine
	-PYTHON=$(PYTHON) benchmarks/peers.sh
	$(BIN)/python -m benchmarks --json benchmarks/results/cpu.json

bench-check: $(INSTALLED)  ## how cost grows with length, batch and data: a minute
	$(BIN)/python -m benchmarks.cost_laws

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

ui: $(INSTALLED)  ## MLflow and Prefect in the browser, on what the demo recorded
	$(BIN)/rlhf ui

docs: $(INSTALLED)  ## a page for every module of rlcore, in site/
	$(BIN)/python docs/api.py site

lock: $(INSTALLED)  ## write requirements.lock from what is installed
	@{ head -1 requirements.lock; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:  ## remove the environment and everything that the pipeline made
	rm -rf $(VENV) $(INFRA) .rlhf site .dvc/cache .dvc/tmp data/raw/demo data/validated data/models data/metrics

# torch comes first and by itself: only its exact version finds the build that fits this machine.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(f"Found Python {sys.version.split()[0]}, expected 3.11 or 3.12. Run make with PYTHON=python3.11." if not (3, 11) <= sys.version_info[:2] <= (3, 12) else 0)'
	@echo "Installing the locked packages into $(VENV): two to five minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' requirements.lock)" "$$(grep '^numpy==' requirements.lock)"
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	@touch $@

# An environment of its own: what servers need is in no one else's.
$(INFRA)/.installed: requirements.lock infra/requirements.txt infra/requirements-test.txt pyproject.toml
	$(PYTHON) -m venv $(INFRA)
	$(INFRA)/bin/pip install --quiet "$$(grep '^torch==' requirements.lock)" "$$(grep '^numpy==' requirements.lock)"
	$(INFRA)/bin/pip install --quiet --requirement requirements.lock
	$(INFRA)/bin/pip install --quiet --requirement infra/requirements.txt --requirement infra/requirements-test.txt
	$(INFRA)/bin/pip install --quiet --no-deps --editable .
	@touch $@
