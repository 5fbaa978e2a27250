# Two commands from a bare clone: `make run` (the main job) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(shell find src csrc -type f -not -name '*.pyc' 2>/dev/null)
# Two workers share two cores: one thread each for the libraries that the tests compare with.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Two jobs at a time: the sanitizer's build and run keep one core busy, and the tests do not need to wait for them.
MAKEFLAGS += --jobs=2
unexport MAKEFLAGS  # for no one but this make: ninja would look for pipes that it was not given

.PHONY: run test tests test-gpu lint sanitize clean

run: $(VENV)/.run
	$(BIN)/zstate train

test: sanitize tests

tests: lint
	$(PYTEST) --cov --cov-report=term

# The engine with the address and undefined-behaviour sanitizers, over random calls. One instruction set, the widest of
# this machine: such a build takes its time.
SANITIZED := $(shell grep -q avx512vl /proc/cpuinfo 2>/dev/null && echo avx512 || echo v2)
sanitize: $(VENV)/.dev
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) > /dev/null \
		-DPython_EXECUTABLE=$(abspath $(BIN)/python) -DZSTATE_SANITIZE=ON -DZSTATE_ISAS=$(SANITIZED)
	$(BIN)/cmake --build build/sanitize > /dev/null
	LD_PRELOAD=$$($${CXX:-g++} -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		UBSAN_OPTIONS=print_stacktrace=1 $(BIN)/python tests/native/sanitize.py build/sanitize/_native*.so 60

# On a machine with an NVIDIA GPU; the Python there must have torch and cuda-core. Most of the time goes into compiling
# specialisations: with pytest-xdist on several cores.
GPU_WORKERS := $(shell $(PYTHON) -c "import os, xdist; print('-n', min(12, os.cpu_count()), '--dist worksteal')" 2>/dev/null)
test-gpu:
	PYTHONPATH=src:tests/gpu $(PYTHON) -m pytest -p no:cacheprovider --confcutdir=tests/gpu $(GPU_WORKERS) tests/gpu

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror csrc/*/*
	$(BIN)/clang-format --dry-run -Werror src/zstate/backends/cuda/*.cu*

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Uninstalled first: pip would keep an installed copy of the same version.
$(VENV)/.run: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip uninstall -qq --yes zstate
	$(BIN)/python -m pip install --quiet '.[train,bfloat16]'
	touch $@

$(VENV)/.dev: $(BIN)/python $(SOURCES) constraints.txt
	$(BIN)/python -m pip uninstall --quiet --yes zstate
	$(BIN)/python -m pip install --quiet -c constraints.txt '.[dev]' \
		--config-settings=cmake.define.ZSTATE_WERROR=ON
	touch $@

clean:
	rm -rf $(VENV) build dist
