# Every target does its own set-up: a bare Python 3.11 or newer is all that must be there.
PYTHON ?= python3
VENV   ?= .venv
RUN    ?= runs/demo

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SETUP_INPUTS := pyproject.toml constraints.txt

.PHONY: install demo test lint format bench docs clean
.DEFAULT_GOAL := install

install: $(VENV)/.ready-demo          ## pixeldp and what the demo needs, in $(VENV)

demo: $(VENV)/.ready-demo             ## train, certify and report on handwritten digits
	$(BIN)/pixeldp demo --out $(RUN)

test: $(VENV)/.ready-dev              ## every test, with the coverage floor
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

lint: $(VENV)/.ready-dev              ## lint, format and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready-bench           ## ratios against something else in the same run
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/constraints.py

docs: $(VENV)/.ready-docs             ## the documentation, as pages in docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build

clean:
	rm -rf $(VENV) docs/_build .coverage .mypy_cache .pytest_cache .ruff_cache

# One environment; each stamp adds what its target needs, and a second run finds the stamp.
$(VENV)/.ready-demo: EXTRAS := demo
$(VENV)/.ready-dev:  EXTRAS := demo,dev,zoo
$(VENV)/.ready-docs: EXTRAS := demo,docs
$(VENV)/.ready-bench: EXTRAS := demo,bench

$(VENV)/.ready-%: $(SETUP_INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pixeldp needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Use: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@
