# Two commands from a bare clone: `make run` (the main job) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(shell find src csrc -type f -not -name '*.pyc' 2>/dev/null)
# Two workers share two cores: one thread each for the libraries that the tests compare with.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: run test test-gpu lint clean

run: $(VENV)/.run
	$(BIN)/zstate check

test: lint
	$(PYTEST) --cov --cov-report=term

# On a machine with an NVIDIA GPU; the Python there must have torch and cuda-core.
test-gpu:
	PYTHONPATH=src:tests/gpu $(PYTHON) -m pytest -p no:cacheprovider --confcutdir=tests/gpu tests/gpu

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# --no-deps for the package itself: pip would otherwise keep an installed copy of the same version.
$(VENV)/.run: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --quiet '.[cli,bfloat16]'
	$(BIN)/python -m pip install --quiet --no-deps --force-reinstall .
	touch $@

$(VENV)/.dev: $(BIN)/python $(SOURCES) constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --force-reinstall .
	touch $@

clean:
	rm -rf $(VENV) build dist
