# Two commands matter: `make demo` and `make test`. Everything they need is installed by them, outside or in build/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv

include testbed/testbed.mk

.PHONY: help setup lock demo test check lint types layers unit testbed-fresh integration e2e soak bench mutants fuzz \
	docs clean

help: ## what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

$(VENV)/.synced: requirements.lock pyproject.toml
	@$(PY) -m pip --version >/dev/null 2>&1 || python3 -m venv --clear $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check uv
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip install --quiet --no-deps --editable . uv
	@touch $@

setup: $(VENV)/.synced ## the Python environment in .venv, exactly as locked

lock: ## bring requirements.lock up to pyproject.toml
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --upgrade --group dev pyproject.toml -o requirements.lock

demo: setup ## small days on a simulated cluster (KEEP=1: stay up with the API)
	@$(VENV)/bin/bridgectl demo $(if $(KEEP),--keep) $(if $(SEED),--seed $(SEED))

test: check unit testbed-fresh integration e2e ## everything, on a fresh testbed

check: lint types layers ## what needs no running program

lint: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: setup
	@$(VENV)/bin/mypy

layers: setup
	@$(VENV)/bin/lint-imports --no-cache

unit: setup ## unit, property and simulation tests
	@$(PY) -m pytest -q -n auto tests/unit tests/property tests/simulation

testbed-fresh: ## a testbed without a past and without the bridge
	@testbed/host/install
	@testbed/bin/down
	@testbed/bin/up

integration: setup testbed-check ## tests on a real Postgres, Lua and apiserver, and on the testbed's Slurm if it is up
	@$(PY) -m pytest -q -n 2 --dist loadfile tests/integration

e2e: setup ## the scenarios on the testbed with the bridge; writes build/e2e/handoffs.json
	@testbed/host/install
	@testbed/bin/up bridge
	@$(PY) -m pytest -q tests/e2e

soak: setup ## minutes of work, kills and cuts on the testbed (MINUTES=30, SEED=1); writes build/soak/report.json
	@testbed/host/install
	@testbed/bin/up bridge
	@$(PY) -m tests.soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1)

bench: setup ## how long reading, planning and submitting take, on one core; writes build/bench/*.json
	@$(PY) -m tests.bench

fuzz: setup ## play SEEDS=1000 stories of trouble from FIRST_SEED=0 on; shrinks what breaks
	@$(PY) -m tests.fuzz $(or $(SEEDS),1000) $(or $(FIRST_SEED),0)

mutants: setup ## drop one rule of the planner at a time and see a test fail
	@$(PY) -m tests.bench.mutations

docs: setup ## pages made from code
	@$(PY) -m bridge.lifecycle.diagram > docs/lifecycle.md
	@$(PY) -m bridge.api.policy_schema > docs/policy.schema.json

clean: testbed-down ## take the testbed away and forget build/
	@rm -rf build
