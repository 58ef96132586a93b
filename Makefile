# One command a job. `make` or `make help` lists them.
#
#   PYTHON=python3.12        interpreter the environment is made from
#   VENV=.venv               the environment; VENV=none uses $(PYTHON) as it is
#   TORCH='torch==2.11.0'    pip requirement installed into a new environment
#   ARCH=9.0a                build for these GPUs (TORCH_CUDA_ARCH_LIST); default: this machine's. ARCH= builds for all
#   ARGS='...'               passed on to pytest or the benchmark
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch>=2.10
ARCH ?= $(or $(TORCH_CUDA_ARCH_LIST),native)
ARGS ?=
K ?=

ifeq ($(VENV),none)
PY := $(PYTHON)
READY :=
DEV :=
RELEASE :=
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
RELEASE := $(VENV)/.release
endif

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help build test test-fast bench test-gpu test-kernel bench-kernel sanitize delays compare profile stalls sass info \
        format lint wheel check-wheel hub release clean distclean need-kernel

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# Once: the environment, with torch and everything that tests and benchmarks need.
$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python >= 3.10, or name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "$$($(PYTHON) --version) is too old: Python >= 3.10 is needed (PYTHON=python3.12)"; exit 1; }
	@test -x $(PY) && $(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	    rm -rf $(VENV); \
	    echo "no virtual environment could be made: $(PYTHON) lacks venv or ensurepip."; \
	    echo "  Debian, Ubuntu: apt install python3-venv      or use this Python as it is: VENV=none"; exit 1; }
	$(PY) -m pip install -q --no-compile --disable-pip-version-check 'setuptools>=77' 'cmake>=3.24' ninja '$(TORCH)'
	TORCH_CUDA_ARCH_LIST='$(or $(ARCH),$(TORCH_CUDA_ARCH_LIST))' \
	    $(PY) -m pip install -v --no-compile --disable-pip-version-check --no-build-isolation -e '.[test,bench]' \
	    > $(VENV)/install.log 2>&1 || { cat $(VENV)/install.log; exit 1; }
	@grep -o 'torch_sgemm build: .*' $(VENV)/install.log
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(PY) -m pip install -q --disable-pip-version-check -e '.[dev]' --no-build-isolation
	@touch $@

$(VENV)/.release: $(VENV)/.ready
	$(PY) -m pip install -q --disable-pip-version-check -e '.[release]' --no-build-isolation
	@touch $@

build: $(READY)  ## the library, in place; only what changed is compiled
	@TORCH_CUDA_ARCH_LIST='$(ARCH)' $(PY) setup.py -q build_ext --inplace

# One process where there is a GPU, else one a core.
PYTEST = $(PY) -m pytest $$($(PY) -c 'import torch, xdist; torch.cuda.is_available() or print("-n auto --dist loadgroup")' 2>/dev/null)

test: build  ## all tests: one process where there is a GPU, else one a core; a table last (GPU)
	@$(PYTEST) --beside-torch $(ARGS)

test-fast: build  ## without those marked slow: a few minutes
	@$(PYTEST) -m 'not slow' $(ARGS)

bench: build  ## auto beside torch.matmul: speed, errors, a chart; under two minutes after the build
	@$(PY) -m benchmarks quick $(ARGS)

test-gpu: build  ## the tests that need a GPU
	@$(PY) -m pytest -m gpu $(ARGS)

need-kernel:
	@test -n "$(K)" || { echo "name a kernel: K=thread_tile_2d_128 (make info lists them)"; exit 1; }

test-kernel: need-kernel build  ## the tests of one kernel: K=shared_tile_32
	@$(PY) -m pytest -k '$(K)' $(ARGS)

bench-kernel: need-kernel build  ## time one kernel beside torch.mm: K=shared_tile_32
	@$(PY) -m benchmarks ladder --kernel '$(K)' $(ARGS)

sanitize: build  ## compute-sanitizer's four tools over the table (GPU)
	@$(PY) tools/sanitize.py $(ARGS)

delays: build  ## the kernels with threads that dawdle: the same bits? (GPU)
	@$(PY) tools/delays.py $(ARGS)

compare: build  ## the same bits as another checkout's build? OTHER=../before (GPU)
	@test -n '$(OTHER)' || { echo 'name another checkout with its library built: OTHER=../before'; exit 1; }
	@$(PY) tools/compare_builds.py '$(OTHER)' $(ARGS)

profile: need-kernel build  ## Nsight Compute on one kernel: K=shared_tile_32 (GPU)
	@$(PY) tools/profile_kernel.py '$(K)' $(ARGS)

stalls: need-kernel build  ## where one kernel's warps wait, by data too: K=split_fp16x3 (GPU)
	@$(PY) tools/stalls.py '$(K)' $(ARGS)

sass: need-kernel build  ## instruction mix of one kernel's inner loop: K=shared_tile_32
	@$(PY) tools/sass.py '$(K)' $(ARGS)

info: build  ## versions, build decisions, GPUs, the kernel table
	@$(PY) -m torch_sgemm.info $(ARGS)

format: $(DEV)  ## format C++, CUDA and Python
	@find csrc tests benchmarks -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' | \
	    PATH="$(dir $(PY)):$$PATH" xargs clang-format -i
	@$(PY) -m ruff check --fix . && $(PY) -m ruff format .

lint: $(DEV)  ## check Python style, and that C++ is formatted
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@find csrc tests benchmarks -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' | \
	    PATH="$(dir $(PY)):$$PATH" xargs clang-format --dry-run -Werror

wheel: $(READY)  ## dist/torch_sgemm-*.whl: one wheel for every Python and every torch >= 2.10
	@$(PY) -m pip wheel -q --no-deps --no-build-isolation -w dist . && ls dist/*.whl

check-wheel: $(READY)  ## the same wheel under two Pythons and two torch versions
	@$(PY) tools/check_wheel.py $(ARGS)

hub: $(READY)  ## dist/hub/: a build with a namespace of its own, as huggingface/kernels loads it
	@$(PY) tools/hub_layout.py dist/hub $(ARGS)

release: $(RELEASE)  ## dist/: the sdist, a manylinux wheel that passes its fast tests, an index page
	@$(PY) tools/release.py all dist --tests $(ARGS)

clean:  ## remove what the build made
	rm -rf build dist *.egg-info torch_sgemm/*.so torch_sgemm/build_info.json

distclean: clean  ## remove the environment too
	$(if $(filter none,$(VENV)),,rm -rf $(VENV))
