# Every target makes what it needs in .venv, once; PYTHON names another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check benchmark lab lab-stop tables clean

run: $(VENV)/installed
	@$(BIN)/python examples/clustering-aggregation/run.py

test: $(VENV)/installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n auto --dist worksteal

check: $(VENV)/installed
	@$(BIN)/black --check --quiet . || { $(BIN)/black --diff --quiet .; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/pytest -q tests/unit/test_architecture.py

benchmark: $(VENV)/installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/benchmarks/tools.py

# LAB='--nodes 6 --qpus 10' has more of both, and --help says what else there is
lab: $(VENV)/installed
	@$(BIN)/python -m tests.lab start $(LAB)

lab-stop: $(VENV)/installed
	@$(BIN)/python -m tests.lab stop $(LAB)

clean:
	rm -rf $(VENV) results .streamflow deployments/.streamflow examples/*/.streamflow examples/*/points.csv

$(VENV)/installed: pyproject.toml sf_quantum/clustering/_kernels.c sf_quantum/clustering/_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sf_quantum needs Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV) (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@
