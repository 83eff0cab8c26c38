# Every path here is relative, so that the tree may stand under a path with spaces.
PY := .venv/bin/python
# The constraints hold torch and everything else at one version; the build backend is taken from the same environment.
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
JOBS ?= 2
ARGS ?=
MINUTES ?= 10
# Tests start hundreds of processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all fuzz check fmt bench docs clean clean-all

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' Makefile

demo: .venv/.runtime ## set up what is needed and run the main job on embedded data
	@.venv/bin/vitlab demo

test: check docs ## set up everything, check code and documents, and run the default tests
	@$(PY) -m pytest --numprocesses $(JOBS) $(ARGS)

test-all: check docs ## the same with the slow tests and, where there is a GPU, its tests
	@$(PY) -m pytest --numprocesses $(JOBS) -m "" $(ARGS)

fuzz: .venv/.dev ## changed files for every reader, fresh ones, for MINUTES; what fails is kept in build/fuzz
	@PYTHONPATH=tests $(PY) -W ignore -m fuzz.run --minutes $(MINUTES) $(ARGS)

check: .venv/.dev ## lint, format, types and import layers
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet --diff .
	@$(PY) -m basedpyright
	@.venv/bin/lint-imports --no-logo

fmt: .venv/.dev ## format, and repair what the linter can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

# What ends in _peers.py is started by the benchmark that it belongs to; a soak takes hours, and copies, frozen, labels, methods, pretrain and transfer are measured on data of yours.
bench: .venv/.dev ## every benchmark in turn
	@set -e; for script in benchmarks/*.py; do \
	    case "$$script" in *_peers.py|*/soak.py|*/copies.py|*/frozen.py|*/labels.py|*/methods.py|*/pretrain.py|*/transfer.py) continue;; esac; \
	    grep -q '^if __name__' "$$script" || continue; \
	    echo "== $$script"; $(PY) "$$script"; \
	done

docs: .venv/.dev ## check that the links in the documents resolve, and that the zoo's page is the zoo
	@$(PY) docs/check.py
	@$(PY) docs/zoo.py --check
	@$(PY) docs/published.py --check

clean: ## remove caches and builds
	@rm -rf build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	@find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## remove the environment too
	@rm -rf .venv

.venv/bin/pip:
	@for python in $${PYTHON:+"$$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3; do \
	    if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Making .venv with $$python"; exec "$$python" -m venv .venv; \
	    fi; \
	done; \
	echo "vitlab needs Python 3.11 or later with its venv module: install it, or name it with make PYTHON=/path/to/python." >&2; \
	exit 1

.venv/.runtime: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing vitlab into .venv (some minutes the first time)"
	@$(INSTALL) hatchling
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing vitlab and its development tools into .venv (some minutes the first time)"
	@$(INSTALL) hatchling
	@$(INSTALL) --no-build-isolation --editable ".[dev]"
	@touch .venv/.runtime $@
