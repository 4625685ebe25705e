# Everything runs in .venv; `make setup` is idempotent and implied by every other target.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo serve test check format bench-selection bench-select evaluation evaluation-options clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(STAMP)  ## make the environment

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: setup  ## install, start the service, index the standard library's docstrings, select
	@$(BIN)/boundarymorph demo

serve: setup  ## run the service on 127.0.0.1:8080, with what the demo indexed
	$(BIN)/boundarymorph serve

test: setup  ## all tests
	$(BIN)/python -m pytest

check: setup  ## ruff, mypy --strict, the import walls
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-selection: setup  ## the incremental algorithm beside the literal one -> build/bench/selection.json
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.bench_selection

bench-select: setup  ## where the time of POST /select goes, pool of 10,000 -> build/bench/select.json
	$(BIN)/python -m load_tests.bench_select

TABLES ?= tables
BUDGETS ?= 25,50
evaluation: setup  ## every selector on the tables in TABLES=dir, one report -> build/evaluation/report.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/boundarymorph evaluate $(addprefix --table ,$(sort $(wildcard $(TABLES)/*.npz))) --budgets $(BUDGETS) $(OPTIONS)

evaluation-options: setup  ## rounds, settling, token limits, known scores, speculation on TABLES=dir -> build/evaluation-options/options.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m load_tests.evaluation_options $(TABLES) $(OPTIONS)

clean:  ## remove the environment and build products, keep data/
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
