# Every target starts from nothing but Python: the virtual environment is made on first use
# and made again when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# Processes that share the tests, one for each core; 0 runs them in pytest's own, as --pdb needs.
WORKERS ?= auto
# Files stay whole: what a module's tests share is made once.
# A worker that dies ends the run: with --dist loadfile a new one would be waited for without end.
PYTEST_OPTIONS := -n $(WORKERS) --maxprocesses 8 --max-worker-restart 0 \
	--dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(PYTEST_OPTIONS)
# Tests start hundreds of processes: none is to compile leanconv's modules, or pytest the tests, anew.
unexport PYTHONDONTWRITEBYTECODE
# Machines of tests/support/machines.py, and what depends on the machine by choices and bytes.
MACHINES ?= sapphirerapids haswell znver4
# The longest files come first: no process waits for them at the end.
MACHINE_TESTS := tests/algorithms tests/test_docs.py tests/planner
# Which of these files: all, or the half that the tree's bytes draw.
FILES ?= all
# What runs kernels, with guard pages round every buffer; and half a minute of it.
GUARDED_TESTS := tests/kernels tests/algorithms tests/conv tests/networks tests/planner tests/api
SIDES ?= end start
GUARDED_SAMPLE := tests/planner/test_accepted_formats.py tests/planner/test_limits.py \
	tests/conv/test_conv2d.py tests/networks/test_edges.py tests/algorithms/test_inverted_residual.py
# An AArch64 Python, emulated, and what it runs: kernels against float64 and whole numbers, networks,
# the same bits for any threads. Emulated code is some 20 times slower.
ARM := build/aarch64
ARM_TESTS := tests/arm tests/target tests/kernels tests/conv/test_conv2d.py \
	tests/conv/test_long_sums.py tests/conv/test_reproducible.py tests/networks/test_answers.py \
	tests/examples/test_example_digits.py
# The oldest and the newest Python that are promised, and what they run.
PYTHONS ?= 3.10 3.13
PYTHON_TESTS := tests/test_import.py tests/test_records.py tests/test_oldest_python.py \
	tests/runtime/test_locked_loops.py tests/runtime/test_program.py tests/api/test_load.py \
	tests/api/test_network_calls.py tests/api/test_plan_cache.py tests/conv/test_conv_plans.py \
	tests/cli/test_cli_run.py tests/planner/test_lifetimes.py tests/planner/test_solver.py \
	tests/kernels/test_softmax.py
# What is installed to run tests: dev, or test, which leaves out Triton, Ray and what only `lint` needs.
EXTRA ?= dev
INSTALLED = $(VENV)/.installed-$(EXTRA)
BENCH_ARGS ?=
REPLAY_ARGS ?=
CONFORMANCE_ARGS ?=
OCR_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-machines test-guarded test-guarded-sample test-pythons pythons draw test-arm lint \
	replay conformance format bench docs speed stale ocr clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# An interpreter that is named takes the place of the one that the environment was made with.
ifneq ($(filter command environment,$(firstword $(origin PYTHON))),)
IDENTITY := -c 'import sys; print(sys.base_prefix, sys.version.replace(chr(10), ""))'
ifneq ($(wildcard $(VENV)),)
ifneq ($(shell $(PYTHON) $(IDENTITY)),$(shell $(BIN)/python $(IDENTITY) 2>&1))
.PHONY: renew
renew:
	$(PYTHON) -m venv --clear $(VENV)
$(BIN)/python $(VENV)/.installed-image $(VENV)/.installed-dev $(VENV)/.installed-test $(VENV)/.installed-bench $(VENV)/.installed-ocr $(VENV)/.installed-docs: renew
endif
endif
endif

$(VENV)/.installed-image: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[image]'
	@touch $@

# Of 9,000 modules the tests import a part: Python compiles that when it does, and keeps it.
$(VENV)/.installed-dev $(VENV)/.installed-test: $(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$*]'
	@touch $@ $(VENV)/.installed-image

$(VENV)/.installed-ocr: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[ocr]'
	@touch $@ $(VENV)/.installed-image

$(VENV)/.installed-bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[image,bench]'
	@touch $@ $(VENV)/.installed-image

demo: $(VENV)/.installed-image ## read handwritten digits from PNG files with the shipped network
	$(BIN)/leanconv run examples/digits/digits.onnx examples/digits/images/*.png

test: $(INSTALLED) ## run every test; EXTRA=test makes a smaller .venv first
	$(PYTEST) --durations=20 --durations-min=1 $(PYTEST_ARGS)

test-machines: $(addprefix .test-,$(MACHINES)) ## run those that depend on the machine as if on others

.test-%: $(INSTALLED)
	TEST_MACHINE=$* TEST_FILES=$(FILES) $(PYTEST) $(or $(PYTEST_ARGS),$(MACHINE_TESTS))

test-guarded: $(addprefix .guarded-,$(SIDES)) ## run those of kernels with guard pages round every buffer

test-guarded-sample: ## run a few of these
	$(MAKE) --keep-going test-guarded PYTEST_ARGS="$(GUARDED_SAMPLE)"

.guarded-%: $(INSTALLED)
	TEST_GUARDED=$* $(PYTEST) $(or $(PYTEST_ARGS),$(GUARDED_TESTS))

test-pythons: $(addprefix .test-python-,$(PYTHONS)) ## run some with the oldest and the newest Python

pythons: $(addprefix .python-,$(PYTHONS)) ## make the environments of these

# Variables for the targets above, as in `make $(make --silent draw) test-machines`.
draw: $(INSTALLED) ## name one machine, side and Python of these, which the sources' bytes draw
	@PYTHONPATH=src:tests $(BIN)/python -m support.drawn \
		MACHINES="$(MACHINES)" FILES=half SIDES="$(SIDES)" PYTHONS="$(PYTHONS)"

# Exit code 3 says that there is no such interpreter: a line about it is then all that happens.
.python-%: $(VENV)/.installed-dev
	@$(BIN)/python tests/pythons/prepare.py $* build/pythons/$* || [ $$? -eq 3 ]

.test-python-%: $(VENV)/.installed-dev
	@$(BIN)/python tests/pythons/prepare.py $* build/pythons/$* || exit $$(( $$? == 3 ? 0 : 1 )); \
	build/pythons/$*/bin/python -m pytest $(PYTEST_OPTIONS) \
		-o cache_dir=build/pythons/$*/pytest $(or $(PYTEST_ARGS),$(PYTHON_TESTS))

test-arm: $(VENV)/.installed-dev ## run the kernels' and networks' tests on an emulated AArch64
	$(BIN)/python tests/arm/prepare.py $(ARM)
	$(ARM)/python -m pytest $(PYTEST_OPTIONS) -o timeout=1200 -o cache_dir=$(ARM)/pytest \
		--durations=20 $(or $(PYTEST_ARGS),$(ARM_TESTS))

lint: $(VENV)/.installed-dev ## style, types and the order of the folders
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layering.py

replay: $(INSTALLED) ## compare the code that is emitted with what is kept
	$(BIN)/python tests/replay/emitted_code.py $(REPLAY_ARGS)

conformance: $(INSTALLED) ## run ONNX's backend suite, every case compiled
	$(BIN)/python tests/conformance/run.py $(CONFORMANCE_ARGS)

format: $(VENV)/.installed-dev ## put the code into the house's shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench models/mobilenetv2.onnx models/resnet50.onnx ## compare with the other engines
	$(BIN)/python benchmarks/networks.py $(BENCH_ARGS)

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

docs: $(VENV)/.installed-docs ## the documents as a site, in build/site; opened in Chromium where there is one
	$(BIN)/python docs/site/build.py --check

speed: $(VENV)/.installed-dev ## a look at whether something has become much slower
	$(BIN)/python benchmarks/speed_check.py

stale: $(VENV)/.installed-dev ## name the results that are older than the kernels
	$(BIN)/python benchmarks/stale.py

ocr: $(VENV)/.installed-ocr ## read pages and find faces with packages from PyPI, on both engines
	$(BIN)/python examples/ocr/compare.py $(OCR_ARGS)

models/%.onnx: | $(VENV)/.installed-bench
	@mkdir -p models
	$(BIN)/python examples/networks/build.py $* --out $@

clean: ## remove what the targets made
	rm -rf $(VENV) models build dist .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
