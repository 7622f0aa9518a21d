# Needs Python 3.11 or newer, Java 17 or newer, make, and PyPI. Everything lands in .venv.
# Choose another interpreter with: make setup PYTHON=python3.12

PYTHON ?= python3
# Three processes on two cores: tests of sites and of Spark wait for processes that they start.
JOBS ?= 3
# The interpreter that the lock is resolved on: the oldest supported one (see `lock`).
LOCK_PYTHON ?= python3.11

# Not a variable to override: pre-commit and .ci/run name the same folder.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# These start a JVM for each process, so they run apart from the rest.
JVM := spark or recovery
# Where they are not: to look for tests in all folders takes each run a while.
QUICK := tests --ignore=tests/spark --ignore=tests/recovery --ignore=tests/memory
SLOW := tests --ignore=tests/unit --ignore=tests/property
# These need much memory, or fill the machine with processes: apart from the rest, too.
ALONE := cluster or memory

# Generated cases differ from commit to commit, and are the same for the same one.
SEED ?= $(shell printf '%d' "0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 1)")
PYTEST = $(BIN)/pytest --hypothesis-seed=$(SEED) --randomly-seed=$(SEED) --durations=15

# Spark starts its Python workers with plain `python3` unless told otherwise, and that one knows
# nothing of the packages in the virtual environment.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo check test test-full tests lint format fuzz bench lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Install Dovetail, its benchmarks and its tools into .venv

$(STAMP): pyproject.toml benchmarks/pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "setup: there is no '$(PYTHON)' here. Install Python 3.11 or newer," \
		     "or name one: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "setup: Dovetail needs Python 3.11 or newer, but '$(PYTHON)' is" \
		     "$$("$(PYTHON)" -V 2>&1). Name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@# Before the downloads, so that a missing Java is not the last thing one learns.
	@"$(PYTHON)" -I src/dovetail/cli/doctor.py
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet \
		-c constraints.txt -e '.[dev,delta,iceberg]' -e ./benchmarks
	@touch $@

demo: setup ## Join orders and payments on local Spark, live, beside Spark's own join
	$(BIN)/dovetail demo

check: setup lint ## Lint, types and unit tests: two minutes
	$(PYTEST) tests/unit -n $(JOBS) --dist worksteal

test: setup lint tests ## Lint, types, and all that a change can break: sixteen minutes

test-full: setup lint ## The same with all cases: more than an hour
	TEST_DEPTH=full $(MAKE) tests SEED=$(if $(filter command,$(origin SEED)),$(SEED),$$(date +%s))

# Three runs, as what starts a JVM or fills the machine does not go well beside the rest.
tests: setup
	$(PYTEST) $(QUICK) -n $(JOBS) --dist worksteal -m "not ($(JVM) or $(ALONE))"
	$(PYTEST) $(SLOW) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "($(JVM)) and not ($(ALONE))"
	$(PYTEST) $(SLOW) -n 2 --dist worksteal -m "$(ALONE)"

lint: setup ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

fuzz: setup ## Run the property tests on many more generated cases
	TEST_DEPTH=fuzz $(BIN)/pytest tests/property -n $(JOBS) --dist worksteal --timeout=7200

bench: setup ## Compare with Spark's own stream-stream join
	$(BIN)/dovetail bench run spark-two-way

# Newer Pythons can install what the oldest one resolves to, but not the other way round.
lock: ## Resolve constraints.txt anew (needs Python 3.11)
	@"$(LOCK_PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
		echo "lock: needs Python 3.11, the oldest supported version; name one:" \
		     "make lock LOCK_PYTHON=/path/to/python3.11" >&2; exit 1; }
	@set -eu; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	"$(LOCK_PYTHON)" -m venv "$$scratch"; \
	"$$scratch/bin/python" -m pip install --quiet \
		-e '.[dev,delta,iceberg]' -e ./benchmarks; \
	{ sed -n '/^#/p' constraints.txt; \
	  "$$scratch/bin/python" -m pip freeze --exclude-editable; } > "$$scratch/constraints.txt"; \
	cp "$$scratch/constraints.txt" constraints.txt
	@echo "lock: $$(grep -c == constraints.txt) versions written to constraints.txt"

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist benchmarks/dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf spark-warehouse metastore_db derby.log
	find src benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
