# Every target works on a fresh machine with Python 3.11 or later, make and git: `setup` brings the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.setup-done
PYTEST := $(BIN)/python -m pytest
KERNEL_TESTS := $(addprefix tests/unit/engine/,kernels join shedding/test_tracker.py test_keys.py test_warm_up.py) \
  tests/laws/test_engine.py tests/laws/test_shared_trees.py

.PHONY: help setup demo test test-fast test-kernels test-engine test-laws test-units kernels test-spark test-versions test-faults test-kafka test-nojit check lint imports types format reproduce reproduce-quick bench docs tables lock clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with pinned, hash-checked requirements and the package itself

$(STAMP): requirements/dev.txt pyproject.toml tools/setup.sh
	@bash tools/setup.sh .venv
	@touch $@

demo: setup ## Run the demonstration
	@$(BIN)/dovetail demo

# Two at a time: tests on Spark leave a core idle while they wait. The longest comes first, so that both cores are busy until the end.
test: setup ## Run everything that CI runs: checks, all tests, the laws without JIT
	@$(MAKE) --no-print-directory -j2 check test-spark test-laws test-units test-nojit

test-fast: setup ## Run unit tests, examples and documentation (no slow tests, laws or Spark): 6 minutes
	$(PYTEST) -q -m "not slow" tests/unit tests/docs src experiments

test-kernels: setup ## Run units and laws of the kernels and the join: 1 minute, 3 if kernels changed
	$(PYTEST) -q $(KERNEL_TESTS)

test-engine: test-laws test-units ## Run all tests that need no Spark, and the examples in docstrings

test-laws: kernels
	DOVETAIL_PROFILE=ci $(PYTEST) -q tests/laws

test-units: kernels
	DOVETAIL_PROFILE=ci $(PYTEST) -q tests/unit tests/docs src experiments

# Processes that start at the same time would each compile them.
kernels: setup
	@$(BIN)/python -c "from dovetail.engine.warm_up import warm_up, warm_up_shedding; warm_up(); warm_up_shedding()"

test-spark: kernels ## Run all tests on Spark (needs Java 17)
	DOVETAIL_PROFILE=ci $(PYTEST) -q tests/spark

test-versions: setup ## Run the core of the tests on Spark with each version of PySpark, Python and pandas
	@$(BIN)/python tools/spark_versions.py $(ONLY)

test-nojit: setup ## Run the laws with kernels as plain Python (readable tracebacks)
	NUMBA_DISABLE_JIT=1 DOVETAIL_PROFILE=nojit $(PYTEST) -q tests/laws

test-faults: setup ## Kill workers, drivers and executors at ten points each; the output must not change
	DOVETAIL_FAULTS=10 $(PYTEST) -q tests/spark/test_faults.py

test-kafka: setup ## Run the tests with a Kafka broker (needs Maven), and kill a driver, a worker and the broker twice
	DOVETAIL_KAFKA=2 $(PYTEST) -q tests/spark/test_kafka.py

check: lint types imports

lint: setup ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "Some files are not formatted. Hint: make format"; exit 1; }

types: setup ## Check types
	$(BIN)/mypy

imports: setup ## Check which package may import which
	$(BIN)/python tools/check_imports.py

format: setup ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

reproduce: setup ## Run the papers' experiments again, one with PAPER=<name>, smaller with GRID=draws=4: hours
	$(BIN)/python -m experiments $(or $(PAPER),all) $(if $(GRID),--grid $(GRID))

reproduce-quick: setup ## The same on small grids: minutes
	$(BIN)/python -m experiments $(or $(PAPER),all) --quick

bench: setup ## Measure the engine beside its peers
	$(BIN)/python benchmarks/engine.py

docs: .venv-docs/.setup-done ## Build the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet
	@echo "Open site/index.html"

.venv-docs/.setup-done: requirements/docs.txt
	python3 -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

tables: setup ## Write the tables and the chart of the docs from benchmarks/results
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/chart.py

lock: ## Pin the requirements again (needs uv on the PATH; nothing else does)
	@command -v uv >/dev/null || { echo "make lock needs uv, a resolver that writes hashes; install it first."; exit 1; }
	cd requirements && for name in runtime dev docs; do \
	  uv pip compile --upgrade --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 $$name.in -o $$name.txt; \
	done
	cd requirements/versions && for file in *.in; do \
	  uv pip compile --upgrade --quiet --no-deps --generate-hashes --no-emit-index-url --no-header --python-version 3.11 $$file -o $${file%.in}.txt; \
	done

clean: ## Remove .venv and everything that was built or cached
	rm -rf .venv .venv-docs .versions site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
