# make setup   .venv with tide, the test tools and PyTorch        make demo        real jobs in three tiers on this machine
# make demo-serve  training, and a model whose requests surge: devices are lent, and taken back within a second
# make test    everything that must pass before a change goes in  make test-full   the long matrices too
# make bench   the bars beside the measured figures               make leaderboard policies compared, docs/leaderboard.md
# make bench-compare BASE=COMMIT   the same of two commits by turns, as ratios
# make test-codegen   kernels gated and compiled for a GPU that is not there, in an environment of its own (about 5 GB)
# make bench-gpu  the tests and figures that need a GPU; says so where there is none
#
# Needs python3 (>= 3.11), git and make. Variables: PYTHON (the interpreter to build on), TORCH (what pip installs),
# TORCH_INDEX (a package index to take it from, where the default one offers only the large CUDA build).

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROGRAMS := $(VENV)/.programs
COLLECTED := .pytest_cache/.collected
STRICT_ROOMS := base model plan estimate placement policy engine

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-serve test rings rings-1-2 ring-3 test-codegen test-full lint types bench bench-compare bench-gpu leaderboard clean

help:
	@sed -n '1,10s/^# \{0,1\}//p' Makefile

setup: $(READY)

# Built again when the dependencies change; a second run does nothing.
$(READY): pyproject.toml tools/setup.sh
	PYTHON='$(PYTHON)' TORCH='$(TORCH)' TORCH_INDEX='$(TORCH_INDEX)' sh tools/setup.sh $(VENV)
	@touch $(READY)

demo: $(READY)
	$(BIN)/python tools/demo.py

demo-serve: $(READY)
	$(BIN)/python tools/demo_serve.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Rings 1 and 2 compute; ring 3 starts real processes, in namespaces and folders of their own, and waits for many of them. So they
# run side by side, and beside the check of the types: ring 3 comes first and has twice as many workers as there are cores; rings 1
# and 2 take what it leaves of the cores. What they say is printed when they end.
# They start hundreds of Python processes: the package is compiled once, also where the shell forbids it.
rings rings-1-2 ring-3 test test-full: export PYTHONDONTWRITEBYTECODE =
# Nor need hundreds of processes that import numpy start threads for its linear algebra; in the long matrices programs have them.
rings-1-2 ring-3: export OPENBLAS_NUM_THREADS = 1
test: lint
	$(MAKE) --no-print-directory -j 3 types rings-1-2 ring-3

rings: $(READY)
	$(MAKE) --no-print-directory -j 2 rings-1-2 ring-3

# The tests are compiled, with their assertions, by one process the first time, and not by each worker of the rings at once.
$(COLLECTED): $(READY)
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1; mkdir -p $(@D) && touch $@

# Their tests write thousands of small files, in memory where there is room for them: on some disks each takes milliseconds to remove.
rings-1-2: $(COLLECTED)
	@where=$${TMPDIR:-/tmp}; \
	if [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }')" -gt 8000000 ] 2>/dev/null; then where=/dev/shm; fi; \
	said=$$(mktemp); room=$$(mktemp -d -p "$$where"); trap 'rm -rf "$$said" "$$room"' EXIT; \
	TMPDIR=$$room nice -n 10 $(BIN)/pytest --basetemp "$$room/t" -n $$((1 + $(WORKERS))) --dist worksteal -m 'not processes and not gpu and not full' >"$$said" 2>&1; \
	code=$$?; echo 'rings 1 and 2:'; cat "$$said"; exit $$code

ring-3: $(COLLECTED)
	$(BIN)/pytest -n $$((2 * $(WORKERS))) --dist worksteal -m 'processes and not full'

# The long matrices put programs of others to the test, too; those that cannot be installed here are skipped, and say so.
$(PROGRAMS): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[programs]' || echo 'not all programs of others can be had here' >&2
	@touch $(PROGRAMS)

test-full: lint types $(PROGRAMS)
	$(BIN)/pytest --hypothesis-profile full -n $(WORKERS) -m 'not processes'
	$(BIN)/pytest --hypothesis-profile full -m 'processes'

# PyTorch's CUDA build and Triton, apart from the ordinary environment. Where they cannot be installed, says so and is skipped.
CODEGEN := .venv-codegen
CODEGEN_READY := $(CODEGEN)/.ready
$(CODEGEN_READY): tools/setup_codegen.sh
	@PYTHON='$(PYTHON)' sh tools/setup_codegen.sh $(CODEGEN); code=$$?; [ $$code -ne 3 ] || exit 0; [ $$code -eq 0 ] && touch $@

# MODELS: some of the five, instead of all. A run that was interrupted goes on where it was.
test-codegen: $(CODEGEN_READY)
	@[ -e $(CODEGEN_READY) ] || { echo 'test-codegen: skipped, PyTorch with CUDA and Triton cannot be installed here' >&2; exit 0; }; \
	PYTHONPATH=src $(CODEGEN)/bin/python -m pytest tests/runtime/cuda && \
	PYTHONPATH=src $(CODEGEN)/bin/python -m tests.runtime.cuda.codegen $(MODELS)

# Every bench runs, also after one has failed; the exit code tells of the failure.
bench: $(READY)
	@failed=0; for file in $(filter-out bench/facts.py bench/compare.py bench/same_decisions.py,$(sort $(wildcard bench/*.py))); do \
	  echo "== $$file"; $(BIN)/python $$file || failed=1; done; exit $$failed

# The commit before the last one, unless BASE names another.
BASE ?= HEAD~1
bench-compare: $(READY)
	$(BIN)/python bench/compare.py $(BASE) $(BENCHES)

# From a bare checkout, with a python3 that has PyTorch and Triton; what needs the project's environment runs where that is.
bench-gpu:
	$(PYTHON) bench/gpu_runtime.py
	@if [ -e $(READY) ]; then $(BIN)/pytest -m gpu; \
	else echo 'bench-gpu: the ring gpu needs make setup, and is skipped'; fi

leaderboard: $(READY)
	$(BIN)/python tools/leaderboard.py $(ARGS)

clean:
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@echo 'kept: $(VENV) (rm -rf it to set up anew) and .tide (tide --state .tide down, then rm -rf it)'
