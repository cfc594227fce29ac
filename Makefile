# The commands a person types. Everything a command needs is installed by it, into .venv and build/.
#   make demo    train a real model over the transport, with losses (report in demo-report/)
#   make test    every test, C++ and Python
#   make test-asan   the C++ tests under sanitizers: addresses and undefined behaviour
#   make test-tsan   those of the layers that have threads under ThreadSanitizer: ctest holds the others to having none
#   make swarm   SEEDS=2000 simulated networks with faults, judged by the oracle; resumable
#   make micro   DEPTH=2 every pattern of up to so many faults in tiny worlds, judged by the oracle; resumable
#   make mutants plants faults in the core and demands that the swarm catches each
#   make fuzz    every fuzz target for FUZZ_SECONDS (60) each; says how to replay what it finds
#   make bench   the benchmarks
#   make targets what mlt must reach beside its peers, measured (docs/results/line-rate.md); eight minutes, as root
#   make attacks  attacks a running job from a host of its own (docs/results/attacks.md); three minutes, as root
#   make chaos    real ranks in a bad network, judged by the oracle; CHAOS_ARGS="--seconds 600" writes docs/results/chaos.md
#   make night   the long forms of what .ci/run does in short: swarm, micro-swarm, mutants, chaos, fuzzing; some eight hours
#   make lint    ruff, mypy, clang-format
PYTHON ?= python3
TORCH ?= torch==2.13.0
FUZZ_SECONDS ?= 60
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
CPP_SOURCES := $(shell git ls-files 'src/*' CMakeLists.txt 2>/dev/null)
PY_SOURCES := $(shell git ls-files 'python/*' 'plugins/*' 'switch_configs/*' pyproject.toml 2>/dev/null)

.PHONY: demo test test-cpp test-python test-live test-asan test-tsan fuzz swarm micro mutants night clang bench targets attacks chaos lint format wheel system clean help
help:
	@sed -n 's/^#   //p' Makefile

# System packages (compiler, doctest, the demo's images): installed where apt and the right to use it are there.
system: build/.system
build/.system: tools/install_system_packages.sh
	@mkdir -p build
	bash tools/install_system_packages.sh
	@touch $@

$(VENV)/.created: | build/.system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	@touch $@

# The compiler of the fuzz targets: a large package that nothing else needs.
clang: build/.clang
build/.clang: tools/install_system_packages.sh
	@mkdir -p build
	bash tools/install_system_packages.sh clang
	@touch $@

# torch comes first: any later requirement is then satisfied by this build and fetches no other one.
$(VENV)/.torch: $(VENV)/.created
	$(BIN)/python -m pip install -q "$(TORCH)" numpy
	@touch $@

$(VENV)/.tools: pyproject.toml tools/extra_requirements.py $(VENV)/.torch
	$(BIN)/python tools/extra_requirements.py dev demo plan switch switch-push testbed > build/requirements.txt
	$(BIN)/python -m pip install -q -r build/requirements.txt "scikit-build-core>=0.10" "pybind11>=2.12"
	@touch $@

wheel: $(VENV)/.wheel
$(VENV)/.wheel: $(VENV)/.tools $(CPP_SOURCES) $(PY_SOURCES)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation --force-reinstall .
	@touch $@

demo: $(VENV)/.wheel
	$(BIN)/mlt demo $(DEMO_ARGS)

test: test-cpp test-python

test-cpp: $(VENV)/.tools
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default
	$(BIN)/ctest --preset default --parallel 2

# Tests that compute, and those whose processes only have to end in time, share the cores; those that measure time or
# open networks have them alone.
PARALLEL_TESTS := tests/plugins $(addprefix tests/python/,cli demo job options planners studies protocol simulation \
  switch_configs switch_push)
test-python: $(VENV)/.wheel
ifdef PYTEST_ARGS
	$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	failed=0; $(BIN)/python -m pytest -n auto --dist loadfile $(PARALLEL_TESTS) || failed=1; \
	$(BIN)/python -m pytest $(addprefix --ignore=,$(PARALLEL_TESTS)) || failed=1; exit $$failed
endif

test-asan test-tsan: test-%: $(VENV)/.tools
	$(BIN)/cmake --preset $*
	$(BIN)/cmake --build --preset $*
	$(BIN)/ctest --preset $* --parallel 2

# SEEDS from FIRST on, over all cores; goes on where it was stopped. A failure prints the command that shows it again.
SEEDS ?= 2000
FIRST ?= 1
swarm: $(VENV)/.tools
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_swarm
	$(BIN)/python tools/swarm.py --seeds $(SEEDS) --first $(FIRST) $(SWARM_ARGS)

# Every run of up to DEPTH faults in every scenario, over all cores; MICRO_ARGS="--seeds 1000000" draws long ones.
DEPTH ?= 2
micro: $(VENV)/.tools
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_micro
	$(BIN)/python tools/micro.py --depth $(DEPTH) $(MICRO_ARGS)

mutants: $(VENV)/.tools
	$(BIN)/python tools/mutants.py $(MUTANTS_ARGS)

fuzz: $(VENV)/.tools build/.clang
	$(BIN)/cmake --preset fuzz
	$(BIN)/cmake --build --preset fuzz
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

# NIGHT_SEED begins seeds that no night had before: the day, as 20261123.
NIGHT_SEED ?= $(shell date +%Y%m%d)
night:
	failed=0; for long in "swarm SEEDS=1000000 FIRST=$(NIGHT_SEED)000000" "micro DEPTH=2" "mutants" \
	  "chaos CHAOS_ARGS=--seconds=600" "fuzz FUZZ_SECONDS=3600"; do \
	  echo "==== $$long"; $(MAKE) --no-print-directory $$long || failed=1; done; exit $$failed

test-live: $(VENV)/.wheel
	$(BIN)/python -m pytest -m live tests/python

bench: $(VENV)/.wheel
	$(BIN)/cmake --preset perf
	$(BIN)/cmake --build --preset perf
	$(BIN)/python -m pytest tests/bench --benchmark-only --benchmark-disable-gc -p no:timeout -s

targets: $(VENV)/.wheel
	$(BIN)/python tools/targets $(TARGETS_ARGS)

attacks: $(VENV)/.wheel
	$(BIN)/python tools/attacks $(ATTACKS_ARGS)

# Half a minute, as root; CHAOS_ARGS="--seconds 600" is the long form.
chaos: $(VENV)/.wheel
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_chaos_judge mlt_chaos_wire mlt_chaos_clock
	$(BIN)/python tools/chaos $(CHAOS_ARGS)

lint: $(VENV)/.wheel
	$(BIN)/ruff check python plugins switch_configs tests tools examples studies
	$(BIN)/ruff format --check python plugins switch_configs tests tools examples studies
	$(BIN)/python tools/run_mypy.py
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cc' '*.c')

format: $(VENV)/.tools
	$(BIN)/ruff check --fix-only python plugins switch_configs tests tools examples studies
	$(BIN)/ruff format python plugins switch_configs tests tools examples studies
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cc' '*.c')

clean:
	rm -rf build $(VENV) demo-report bench-report
