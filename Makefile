# Everything starts from Python >= 3.10 and make: `make demo`, `make test`. A second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
USE := $(VENV)/.installed
TEST := $(VENV)/.installed-test

.PHONY: demo test coverage lint format bench clean

demo: $(USE)
	$(BIN)/srns demo

# As many at once as there are cores; all tests of a file in one process, since they share what they train. Files in the order
# of tests/conftest.py, the longest first: xdist's own, by how many tests they have, leaves those with few long ones to the end.
test: $(TEST)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Counting which lines ran takes a third longer.
coverage: $(TEST)
	$(BIN)/python -m pytest --cov --cov-report=term

lint: $(TEST)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(TEST)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(TEST)
	$(BIN)/python benchmarks/first_use.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/recommending.py

# Stamps are written last, so an interrupted install is done again.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

$(USE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "srns needs Python 3.10 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV): some 600 MB on disk with what it needs; pip says nothing until it is done ..."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	@touch $(USE)

$(TEST): $(USE)
	@echo "installing what tests need: some 2 GB on disk, torch among it; pip says nothing until it is done ..."
	$(INSTALL) '.[test,torch]'
	@touch $(TEST)

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
