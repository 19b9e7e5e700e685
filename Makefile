# Everything starts from Python >= 3.10 and make: `make demo`, `make test`. A second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench clean

demo: $(STAMP)
	$(BIN)/srns demo

test: $(STAMP)
	$(BIN)/python -m pytest --cov --cov-report=term

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/reading.py

# The stamp is written last, so an interrupted install is done again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "srns needs Python 3.10 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
