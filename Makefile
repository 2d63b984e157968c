# Every target installs what it needs in .venv, once; PYTHON names another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# a module is compiled when it is first imported, and then no more
unexport PYTHONDONTWRITEBYTECODE

# What runs here holds a lock, for which an installation waits. It ends with the last process that has the
# descriptor: another process between make and a run would not wait for the end of a run after Ctrl-C.
LOCKED := exec 9>>$(VENV)/lock && flock
RUNNING := $(LOCKED) --shared 9 &&

.PHONY: run test test-release coverage check docs release benchmark lab lab-stop tables clean

run: $(VENV)/installed-run
	@$(RUNNING) $(BIN)/python examples/clustering-aggregation/run.py

# ROOM=service/queue runs the tests of one room, TESTS='-m "not process"' those without processes.
TESTS := $(addprefix tests/,$(ROOM))
# What tests write is kept only if one fails.
test: $(VENV)/installed
	@$(RUNNING) folder=$$(mktemp -d) && \
	if PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n auto --dist worksteal --basetemp "$$folder/t" $(TESTS); \
	then rm -rf "$$folder"; \
	else status=$$?; echo "what the tests wrote is in $$folder"; exit $$status; fi

# The tests without processes and those of Slurm on another release of Debian, which is installed in a folder of
# the cache, as root: Debian 13, or on Debian 13 Debian 12.
RELEASE := other
test-release: TESTS := -m "slurm or not process"
test-release:
	@$(PYTHON) -m tests.debian $(RELEASE) make test TESTS='$(TESTS)'

# before Python 3.12, a process that is measured costs twice as much
coverage: $(VENV)/installed
	@$(RUNNING) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n auto --dist worksteal --cov

check: $(VENV)/installed
	@$(RUNNING) $(BIN)/black --check --quiet . || { $(BIN)/black --diff --quiet .; exit 1; }
	@$(RUNNING) $(BIN)/ruff check --quiet .
	@$(RUNNING) $(BIN)/mypy
	@$(RUNNING) $(BIN)/pytest -q tests/project/test_architecture.py

docs: $(VENV)/installed-docs
	@$(RUNNING) $(BIN)/sphinx-build -W --keep-going --quiet --jobs auto docs docs/_build
	@echo "docs/_build/index.html"

# wheel and sdist in dist, tested in empty environments
release: $(VENV)/installed
	@.ci/package

benchmark: $(VENV)/installed
	@$(RUNNING) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/benchmarks/tools.py

# LAB='--nodes 6 --qpus 10' has more of both, and --help says what else there is
lab: $(VENV)/installed-run
	@$(RUNNING) $(BIN)/python -m tests.lab start $(LAB)

lab-stop: $(VENV)/installed-run
	@$(RUNNING) $(BIN)/python -m tests.lab stop $(LAB)

clean:
	rm -rf $(VENV) results dist docs/_build .streamflow deployments/.streamflow examples/*/.streamflow examples/*/points.csv

OFFLINE := no package index answers, or it lacks a package; 'Install it' in README.md tells how to \
  install from a folder of packages

# A dot for each package; pip's warnings stay in the log, which is shown if it fails.
# $(1): what to install
define install
@rm -f $@
@$(LOCKED) --nonblock 9 || { echo "waiting for what runs in $(VENV), such as make run"; flock 9; }; \
  { $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
     $(1) 2>$(VENV)/pip.log && touch $@; } | \
  while read -r word rest; do case $$word in Collecting|Installing) printf .;; esac; done
@echo
@test -e $@ || { cat $(VENV)/pip.log; \
  ! grep -q 'No matching distribution' $(VENV)/pip.log || echo "$(OFFLINE)"; exit 1; }
endef

# a clone that shares its environment with another lacks what the installation builds in it
KERNELS := sf_quantum/clustering/_kernels.so
.PHONY: kernels
kernels:

# compiled at installation, it is a third larger, and most modules are never imported
$(VENV)/installed-run: pyproject.toml sf_quantum/version.py sf_quantum/clustering/_kernels.c sf_quantum/clustering/_build.py \
  $(if $(wildcard $(KERNELS)),,kernels)
	@# one that is there keeps its Python: with another, its packages would not load
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "sf_quantum needs Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }; \
	  echo "creating the virtual environment $(VENV)"; \
	  $(PYTHON) -m venv $(VENV); }
	@echo "installing sf_quantum and StreamFlow (under 400 MB, about a minute)"
	$(call install,--no-compile --editable .)

$(VENV)/installed-docs: $(VENV)/installed-run
	@echo "installing Sphinx"
	$(call install,--no-compile --editable '.[docs]')

$(VENV)/installed: $(VENV)/installed-run
	@echo "installing what the tests need (1.2 GB, about two minutes)"
	$(call install,--editable '.[test]')
	@# tests start many processes, some of users who may not write here; a few files that
	@# packages bring are templates, and no Python
	@$(BIN)/python -m compileall -q -q -j 0 $(VENV)/lib || true
	@# and pytest compiles the tests, which the workers of a run would all do at once
	@$(BIN)/pytest --quiet --collect-only >/dev/null || true
