# Everything starts here. A fresh machine needs Python 3.11 (or newer, see pyproject.toml), gcc and make:
#
#   make demo    compile a small transformer, explain it, check it, time it
#   make test    linters and the whole test suite
#
# Both set up .venv first if that has not been done. Another interpreter: make demo PYTHON=python3.12

PYTHON ?= python3
TORCH  := torch==2.13.0

BIN   := .venv/bin
READY := .venv/.ready
CODE  := src tests examples benchmarks

.PHONY: help setup demo test lint format bench bench-cpu fuzz faults sanitize conformance models wheel vendor clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    compile a small transformer, explain it, check it, time it"
	@echo "make test    linters and the whole test suite"
	@echo "make lint    ruff and mypy alone"
	@echo "make format  let ruff format the code"
	@echo "make bench   time of capture, of graph breaks, of a compiled call and of dynamic shapes against torch.compile"
	@echo "make bench-cpu  the native backend against eager and torch.compile on CPU; writes docs/img/cpu.svg (long)"
	@echo "make fuzz    random programs, compiled and plain, compared: N=100000 of them from SEED=0 on"
	@echo "make sanitize  tests of the C core under sanitizers and in Python's development mode; memory over 10,000 recompilations"
	@echo "make conformance  CPython's own test suite, random programs, models, faults; ends with their numbers (hours)"
	@echo "make models  a zoo of real models, plain and compiled; writes docs/models.md (long)"
	@echo "make faults  make stator fail at every call site in turn; the program must not notice"
	@echo "make wheel   dist/stator-*.whl, installed into an empty environment and tried there"
	@echo "make vendor  wheels for scripts/gpu-check on a machine with a GPU, CPython 3.12, torch, and no network"
	@echo "make clean   remove .venv and what was built"

setup: $(READY)

# torch first and pinned: a looser request may pull other builds and several GB with them.
# The C sources are prerequisites, so that a change to them rebuilds the extension.
$(READY): pyproject.toml setup.py $(wildcard src/stator/_native/*.c src/stator/_native/*.h)
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); sys.exit(None if ok else \
	  "stator needs Python 3.11 to 3.13, this is %s; try make PYTHON=python3.11" % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

# One process per core, each of one thread; a file's tests stay together.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile

lint: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy src/stator examples benchmarks

format: $(READY)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(READY)
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/breaks.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/dynamic.py

bench-cpu: $(READY)
	$(BIN)/python benchmarks/cpu.py

N    ?= 100000
SEED ?= 0
fuzz: $(READY)
	$(BIN)/python tests/fuzz/run.py -n $(N) --seed $(SEED)
	$(BIN)/python tests/fuzz/torch_functions.py

faults: $(READY)
	$(BIN)/python tests/faults/inject.py --jobs 2
	PYTHONPATH=src:tests/watch $(BIN)/python tests/watch/short_of_memory.py

sanitize: $(READY)
	$(BIN)/python tests/sanitize.py
	$(BIN)/python tests/replay/grow.py

conformance: $(READY)
	$(BIN)/python tests/conformance

models: $(READY)
	$(BIN)/python tests/models/table.py --write

wheel: $(READY)
	rm -rf dist build/lib.* build/bdist.*
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	PYTHON=$(PYTHON) TORCH=$(TORCH) scripts/wheel-check

# What such a machine lacks, and what that needs; under 60 MiB together (newer llvmlite wheels are larger).
vendor: $(READY)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	  --python-version 3.12 --dest vendor "llvmlite<0.47" pytest hypothesis iniconfig packaging pluggy pygments sortedcontainers

clean:
	rm -rf .venv build dist vendor src/*.egg-info src/stator/*.so .pytest_cache .mypy_cache .ruff_cache
