# `make reproduce` and `make test` set up all they need on a fresh machine with Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help reproduce test lint types docs numbers bench torture clean
help:
	@echo "make reproduce   the paper's tables and figures, quick budget (results/quick)"
	@echo "make test        lint, types and tests"
	@echo "make docs        the documentation (docs/_build/html)"
	@echo "make numbers     numbers in README and docs, filled in from results/"
	@echo "make bench       measured ratios, written to results/bench"
	@echo "make torture     tries to break it, up to 20 minutes, written to results/torture.json"
	@echo "make clean       remove the virtual environment and caches"

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'underhood needs Python 3.11 or newer; set PYTHON=')"
	$(PYTHON) -m venv $(VENV)

# Stamps, so that a second run installs nothing; they are older than what they depend on after an edit.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev,distributed,docs,onnx,oracles,torch]'
	@touch $@

reproduce: $(VENV)/.installed
	@# Exit code 1 says that a row is not met: the table shows which, and the figures are made all the same.
	@# One thread: these matrices are small, and a second thread that waits for a busy core costs more than it brings.
	NPROC=1 OMP_NUM_THREADS=1 $(BIN)/underhood reproduce --budget quick --out results || test $$? -eq 1

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/basedpyright --warnings

# Two processes of one thread each do twice the work of one process with two threads on networks this small.
test: lint types
	NPROC=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

# Warnings are errors, and nothing is fetched: the reference is made from the code, the theme is installed.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

numbers: $(VENV)/.installed-dev
	$(BIN)/python docs/fill_numbers.py

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# One thread each, as in the tests; two processes at a time.
torture: $(VENV)/.installed-dev
	NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m torture --scale long

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis docs/_build docs/reference
