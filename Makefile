# `make reproduce` and `make test` set up all they need on a fresh machine with Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
OUT    := out# ignored by git
# One thread: these matrices are small, and a second thread that waits for a busy core costs more than it brings.
THREAD := NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Each command and each test's child imports jax: half of that is compiling its source, unless Python may keep it.
export PYTHONDONTWRITEBYTECODE :=
# Two processes of one thread each do twice the work of one process with two threads. Whoever is idle takes over tests.
PYTEST := $(THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help reproduce results report-pdf dist test test-all test-versions lint types pytest docs numbers bench torture clean
help:
	@echo "make reproduce      the paper's tables and figures, quick budget, into $(OUT)/quick; ARTIFACTS='table1 figure2' for some"
	@echo "make results        the same, kept: results/quick and the numbers in README and docs"
	@echo "make test           lint, types and tests"
	@echo "make test-all       the same, with repetition at further sizes and seeds"
	@echo "make test-versions  fast tests with the lowest and the newest dependencies, on Python 3.11, 3.12 and 3.13"
	@echo "make docs           the documentation (docs/_build/html)"
	@echo "make report-pdf     the technical report, from results/ alone (report.pdf)"
	@echo "make dist           sdist and wheel, checked, and used in an empty environment (dist/)"
	@echo "make numbers        numbers in README and docs, filled in from results/"
	@echo "make bench          measured ratios, written to results/bench"
	@echo "make torture        tries to break it, up to 20 minutes, written to results/torture.json"
	@echo "make clean          remove the virtual environments, caches and $(OUT)"

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'underhood needs Python 3.11 or newer; set PYTHON=')"
	$(PYTHON) -m venv $(VENV)

# Stamps, so that a second run installs nothing; they are older than what they depend on after an edit.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[report,sweep]'
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev,dist,distributed,docs,onnx,oracles,torch]'
	@touch $(VENV)/.installed $@

# Exit code 1 says that a row is not met: the table shows which, and the figures are made all the same.
reproduce: $(VENV)/.installed
	$(THREAD) $(BIN)/underhood reproduce $(ARTIFACTS) --budget quick --out $(OUT) || test $$? -eq 1

# Made in $(OUT) and copied at the end, so that every file names the commit it was made from, without "-dirty".
# With the public layers that the zoo compares with.
results: $(VENV)/.installed-dev
	@test -z "$$(git status --porcelain)" || { echo "make results needs a clean tree: commit first" >&2; git status --short >&2; exit 1; }
	rm -rf $(OUT)/quick
	$(MAKE) reproduce ARTIFACTS=
	cp $(OUT)/quick/*.json $(OUT)/quick/*.png $(OUT)/quick/*.pdf results/quick/
	$(BIN)/python docs/fill_numbers.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/basedpyright --warnings

# Most of the tests' time goes into compiling small programs: XLA without its optimiser compiles them five times as fast.
# `make test-all` compiles as a user's jax does.
UNOPTIMISED := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
  --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
pytest: $(VENV)/.installed-dev
	XLA_FLAGS="$(UNOPTIMISED)" $(PYTEST) -m "not slow" --durations 10

# Types are checked beside the tests: the checker keeps one core busy, and tests wait for files and children.
test: lint
	@$(MAKE) --no-print-directory -j 2 types pytest

test-all: lint types
	$(PYTEST)

test-versions:
	$(PYTHON) tests/versions.py

# Warnings are errors, and nothing is fetched: the reference is made from the code, the theme is installed.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# Every number and figure of it comes from results/; nothing is run.
report-pdf: $(VENV)/.installed-dev
	$(BIN)/python docs/report/make.py report.pdf

dist: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.dist

numbers: $(VENV)/.installed-dev
	$(BIN)/python docs/fill_numbers.py

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# One thread each, as in the tests; two processes at a time.
torture: $(VENV)/.installed-dev
	$(THREAD) $(BIN)/python -m torture --scale long

clean:
	rm -rf $(VENV) .venvs $(OUT) .pytest_cache .ruff_cache .hypothesis docs/_build docs/reference
