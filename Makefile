# Commands for developers. Each installs what it needs, into .venv and build/.
#   make demo    train a real model over the transport, with packet loss (report in demo-report/)
#   make test    every test, C++ and Python
#   make test-asan   the C++ tests under sanitizers: addresses and undefined behaviour
#   make test-tsan   the layers with threads under ThreadSanitizer; ctest checks that the others have none
#   make swarm   SEEDS=2000 simulated networks with faults, checked by the oracle; resumable
#   make micro   DEPTH=2 every combination of up to DEPTH faults in tiny worlds, checked by the oracle; resumable
#   make mutants mutation testing: plants faults in the core, each of which the swarm must catch
#   make fuzz    every fuzz target for FUZZ_SECONDS (60) each; prints the command that replays a failure
#   make bench   the benchmarks
#   make targets measures mlt against its targets (docs/results/line-rate.md); twelve minutes, as root
#   make collective-table  runs the tests of all collectives and writes docs/results/collectives.md; as root
#   make collective-speed  times every collective beside gloo and Open MPI (docs/results/collective-speed.md); as root
#   make crossover  times each algorithm of an all-reduce by ranks and size (docs/collectives.md)
#   make scale    measures what grows with ranks, keys and messages (docs/results/scale.md); six minutes
#   make attacks  attacks a running job from another host (docs/results/attacks.md); three minutes, as root
#   make chaos    real ranks in a faulty network, checked by the oracle; CHAOS_ARGS="--seconds 600": the long form
#   make torch-suite  PyTorch's own tests of c10d, over mlt: all that gloo passes
#   make recipes  every script of examples/pytorch over gloo and over mlt; installs Ray too (410 MB)
#   make test-tensorflow  the tests of mlt.tensorflow, in an environment of their own (.venv-tensorflow, 1.6 GB)
#   make test-mxnet  the tests of mlt.mxnet, in an environment of their own (.venv-mxnet, 0.3 GB; Python 3.10 or 3.11)
#   make tensorflow-speed  steps per second on a testbed, tf.distribute over gRPC and mlt in turns (docs/tensorflow.md)
#   make horovod-speed  steps per second on a testbed, Horovod over gloo and mlt in turns (docs/horovod.md)
#   make same-images  test accuracy of two models in PyTorch, TensorFlow and MXNet over mlt (docs/bound.md)
#   make cross-barrier-speed  BytePS's CrossBarrier beside its DistributedOptimizer on a testbed (docs/horovod.md)
#   make torch-accuracy  time to accuracy of DDP on a testbed, by loss bound and part (docs/results/torch-accuracy.md)
#   make torch-calls  times each call of torch.distributed on one host, beside gloo (docs/results/torch-calls.md)
#   make torch-speed  steps per second of DDP on a testbed, gloo and mlt in turns (docs/results/pytorch.md)
#   make test-van  builds BytePS's van and tests it; PS_LITE=DIR: over that tree of ps-lite (docs/byteps-van.md)
#   make van-speed  goodput of ps-lite over mlt's van and over ZMQ, in turns (docs/byteps-van.md)
#   make nccl-speed  NCCL's plugin and plain TCP, in turns, without a GPU (docs/results/nccl.md)
#   make night   long forms of the checks in .ci/run (swarm, micro-swarm, mutants, chaos, scale, fuzzing) and those that
#                it leaves out (the whole of torch-suite); about eight hours
#   make includes  compiles each file of src alone: one that lacks an include fails
#   make lint    ruff, mypy, clang-format
#   make wheels  a wheel for every Python of this machine, each tested in an empty environment (build/wheels)
#   make release checks whether this commit can be released; RELEASE_ARGS=--tag makes its packages and its tag
#   make docs    the documentation as a site (build/site); fails on a broken link
PYTHON ?= python3
TORCH ?= torch==2.13.0
TENSORFLOW ?= tensorflow-cpu==2.21.0
MXNET ?= mxnet==1.9.1 numpy==1.23.5
# Weights for a recipe: 1.7 MB, without the TensorFlow that the package itself asks for.
LANGUAGE_MODEL := textgenrnn==2.0.0
FUZZ_SECONDS ?= 60
VENV := .venv
BIN := $(VENV)/bin
WHEEL_AND_TOOLS := $(VENV)/.tools $(VENV)/.wheel
TENSORFLOW_VENV := .venv-tensorflow
MXNET_VENV := .venv-mxnet
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
CPP_SOURCES := $(shell git ls-files 'src/*' CMakeLists.txt 2>/dev/null)
PY_SOURCES := $(shell git ls-files 'python/*' 'plugins/*' 'switch_configs/*' pyproject.toml 2>/dev/null)

# One pip at a time in an environment, also with -j; the compilers use all cores by themselves.
.NOTPARALLEL:

.PHONY: demo includes test test-cpp test-python test-live test-asan test-tsan build-asan build-tsan run-asan run-tsan build-fuzz fuzz swarm micro mutants night clang bench targets scale collective-table collective-speed crossover attacks chaos torch-suite recipes recipes-packages test-tensorflow test-mxnet tensorflow-speed mxnet-speed horovod-speed same-images cross-barrier-speed torch-speed torch-accuracy torch-calls nccl-speed build-van test-van van-speed lint format wheel wheels release docs system clean help
help:
	@sed -n 's/^#   //p' Makefile

# System packages (compiler, doctest, the demo's images): installed if apt is available and permitted.
system: build/.system
build/.system: tools/install_system_packages.sh
	@mkdir -p build
	bash tools/install_system_packages.sh
	@touch $@

$(VENV)/.created: | build/.system
	$(PYTHON) tools/pulse.py "makes $(VENV)" $(PYTHON) -m venv $(VENV)
	$(PYTHON) tools/pulse.py "updates pip" $(BIN)/python -m pip install -q --upgrade pip
	@touch $@

# The compiler of the fuzz targets: a large package that nothing else needs.
clang: build/.clang
build/.clang: tools/install_system_packages.sh
	@mkdir -p build
	bash tools/install_system_packages.sh clang
	@touch $@

# Changes when TORCH does: then that build replaces the one that is there.
$(VENV)/.torch-choice: $(VENV)/.created FORCE
	@echo "$(TORCH)" | cmp -s - $@ || echo "$(TORCH)" >$@
FORCE:

# torch first: later requirements then use this build instead of downloading another one.
$(VENV)/.torch: $(VENV)/.torch-choice
	@echo "mlt: installs $(TORCH), a large download (TORCH=... chooses another build)"
	$(PYTHON) tools/pulse.py "installs $(TORCH)" $(BIN)/python -m pip install "$(TORCH)" numpy
	@touch $@

# What builds the wheel, runs the demo and every command of the README.
$(VENV)/.packages: pyproject.toml tools/extra_requirements.py $(VENV)/.torch
	@echo "mlt: installs the packages of the demo and of mlt's commands"
	$(BIN)/python tools/extra_requirements.py demo plan switch switch-push testbed > build/requirements.txt
	$(PYTHON) tools/pulse.py "installs packages" $(BIN)/python -m pip install -q -r build/requirements.txt \
	  "scikit-build-core>=0.10" "pybind11>=2.12" "cmake>=3.24" ninja
	@touch $@

$(VENV)/.tools: $(VENV)/.packages
	@echo "mlt: installs the packages of the tests and the linters, which takes minutes the first time"
	$(BIN)/python tools/extra_requirements.py dev demo metrics plan recipes switch switch-push testbed > build/tools-requirements.txt
	$(PYTHON) tools/pulse.py "installs packages" $(BIN)/python -m pip install -q -r build/tools-requirements.txt
	$(BIN)/python -m pip install -q --no-deps $(LANGUAGE_MODEL)
	@touch $@

# Open MPI, a peer of some measurements.
$(VENV)/.mpi: $(VENV)/.packages tools/install_system_packages.sh
	bash tools/install_system_packages.sh mpi
	$(BIN)/python tools/extra_requirements.py perf > build/mpi-requirements.txt
	$(PYTHON) tools/pulse.py "installs mpi4py" $(BIN)/python -m pip install -q -r build/mpi-requirements.txt
	@touch $@

wheel: $(VENV)/.wheel
# Several files at a time, most of which are the same headers; `pip install .` compiles each alone.
$(VENV)/.wheel build/wheel-again/.packed: export SKBUILD_CMAKE_DEFINE := MLT_PRECOMPILE=ON;CMAKE_UNITY_BUILD=ON
$(VENV)/.wheel: $(VENV)/.packages $(CPP_SOURCES) $(PY_SOURCES)
	@$(BIN)/python tools/install_wheel.py
	@touch $@

$(VENV)/.docs: $(VENV)/.created pyproject.toml
	$(BIN)/python tools/extra_requirements.py docs > build/docs-requirements.txt
	$(BIN)/python -m pip install -q -r build/docs-requirements.txt
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/python tools/site.py

wheels: build/.system
	$(PYTHON) tools/wheels.py $(WHEELS_ARGS)

release: $(VENV)/.packages
	@$(BIN)/python tools/release.py $(RELEASE_ARGS)

demo: $(VENV)/.wheel
	$(BIN)/mlt demo $(DEMO_ARGS)

test: test-cpp test-python

test-cpp: $(VENV)/.tools
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default
	$(BIN)/ctest --preset default --parallel 2

# Tests that measure a speed, a delay or a share of the processor run alone. All others run two at a time: they compute,
# or wait.
TIMED_TESTS := $(foreach topic,collective_speed crossover perf_local perf_raw_udp perf_testbed scale,\
    tests/python/perf/test_$(topic).py) tests/python/transport/test_spin.py \
  $(foreach topic,beside_tcp delay_line links proofs red slow_host,tests/python/testbed/test_testbed_$(topic).py)
test-python: $(WHEEL_AND_TOOLS)
ifdef PYTEST_ARGS
	$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	failed=0; $(BIN)/python -m pytest -n auto --dist loadfile --durations=40 tests/plugins tests/python \
	  $(addprefix --ignore=,$(TIMED_TESTS)) || failed=1; \
	$(BIN)/python -m pytest --durations=20 $(TIMED_TESTS) || failed=1; exit $$failed
endif

# Each file of src alone, as nothing else compiles them: one that lacks an include fails.
includes: $(VENV)/.tools
	$(BIN)/cmake --preset includes -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) -DPython_ROOT_DIR=$(CURDIR)/$(VENV)
	$(BIN)/cmake --build --preset includes

build-asan build-tsan: build-%: $(VENV)/.tools
	$(BIN)/cmake --preset $*
	$(BIN)/cmake --build --preset $*

test-asan test-tsan: test-%: build-%
	$(MAKE) --no-print-directory run-$*

# What was built is not looked at again, so that another part may run at the same time.
run-asan run-tsan: run-%:
	$(BIN)/ctest --preset $* --parallel 2 $(CTEST_ARGS)

# SEEDS from FIRST on, on all cores; continues where it was stopped. A failure prints the command that replays it.
SEEDS ?= 2000
FIRST ?= 1
swarm: $(VENV)/.tools
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_swarm
	$(BIN)/python tools/swarm.py --seeds $(SEEDS) --first $(FIRST) $(SWARM_ARGS)

# Every run of up to DEPTH faults in every scenario, on all cores; MICRO_ARGS="--seeds 1000000" draws long ones.
DEPTH ?= 2
micro: $(VENV)/.tools
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_micro
	$(BIN)/python tools/micro.py --depth $(DEPTH) $(MICRO_ARGS)

mutants: $(VENV)/.tools
	$(BIN)/python tools/mutants.py $(MUTANTS_ARGS)

build-fuzz: $(VENV)/.tools build/.clang
	$(BIN)/cmake --preset fuzz
	$(BIN)/cmake --build --preset fuzz

fuzz: build-fuzz
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

# NIGHT_SEED: first seed, new every night: the date, as 20261123.
NIGHT_SEED ?= $(shell date +%Y%m%d)
night:
	failed=0; for long in "swarm SEEDS=1000000 FIRST=$(NIGHT_SEED)000000" "micro DEPTH=2" "mutants" "includes" "test-asan MLT_TEST_ALL_SEEDS=1" \
	  "chaos CHAOS_ARGS=--seconds=600" "scale SCALE_ARGS=--night" "torch-suite" "fuzz FUZZ_SECONDS=3600"; do \
	  echo "==== $$long"; $(MAKE) --no-print-directory $$long || failed=1; done; exit $$failed

test-live: $(WHEEL_AND_TOOLS)
	$(BIN)/python -m pytest -m live tests/python

bench: $(WHEEL_AND_TOOLS)
	$(BIN)/cmake --preset perf
	$(BIN)/cmake --build --preset perf
	$(BIN)/python -m pytest tests/bench --benchmark-only --benchmark-disable-gc -p no:timeout -s

targets: $(WHEEL_AND_TOOLS) $(VENV)/.mpi
	$(BIN)/python tools/targets $(TARGETS_ARGS)

# SCALE_ARGS=--short: 64 ranks and 600 keys, held to limits; half a minute.
scale: $(WHEEL_AND_TOOLS)
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_sim_scale
	$(BIN)/python tools/scale $(SCALE_ARGS)

# What the tests of all collectives record: docs/results/collectives.md; as root.
collective-table: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/collective_table.py

# Each algorithm of an all-reduce by world and size, on this host: the crossovers of docs/collectives.md; ten minutes.
crossover: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/crossover.py $(CROSSOVER_ARGS)

# Every collective beside gloo and Open MPI, on loopback and testbeds; six minutes.
collective-speed: $(WHEEL_AND_TOOLS) $(VENV)/.mpi
	$(BIN)/python tools/collective_speed

attacks: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/attacks $(ATTACKS_ARGS)

# Half a minute, as root; CHAOS_ARGS="--seconds 600" is the long form.
chaos: $(WHEEL_AND_TOOLS)
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_chaos_check mlt_chaos_wire mlt_chaos_clock
	$(BIN)/python tools/chaos $(CHAOS_ARGS)

# Three minutes; SUITE_ARGS="all_reduce -v": the tests with that in their names.
torch-suite: $(WHEEL_AND_TOOLS)
	$(BIN)/python tests/plugins/torch/torch_suite.py $(SUITE_ARGS)

# What make test runs of them, and those whose library is too large for it.
recipes: recipes-packages
	$(BIN)/python -m pytest tests/plugins/torch/test_recipes.py

recipes-packages: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/extra_requirements.py recipes-ray > build/recipes-requirements.txt
	$(BIN)/python -m pip install -q -r build/recipes-requirements.txt "$(TORCH)"

# TensorFlow has an environment of its own: its packages and torch's need not agree.
$(TENSORFLOW_VENV)/.packages: pyproject.toml tools/extra_requirements.py | build/.system
	$(PYTHON) tools/pulse.py "makes $(TENSORFLOW_VENV)" $(PYTHON) -m venv $(TENSORFLOW_VENV)
	$(PYTHON) tools/extra_requirements.py > build/tensorflow-requirements.txt
	@echo "mlt: installs $(TENSORFLOW), a large download (TENSORFLOW=... chooses another build)"
	$(PYTHON) tools/pulse.py "installs $(TENSORFLOW)" $(TENSORFLOW_VENV)/bin/python -m pip install -q "$(TENSORFLOW)" \
	  -r build/tensorflow-requirements.txt "pytest>=8" "pytest-timeout>=2.2"
	@touch $@

# MXNet too: it needs an older numpy, and with it Python 3.11 or older.
$(MXNET_VENV)/.packages: pyproject.toml tools/extra_requirements.py | build/.system
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info >= (3, 12) and 'MXNet needs Python 3.10 or 3.11: PYTHON=...')"
	$(PYTHON) tools/pulse.py "makes $(MXNET_VENV)" $(PYTHON) -m venv $(MXNET_VENV)
	$(PYTHON) tools/extra_requirements.py > build/mxnet-requirements.txt
	$(PYTHON) tools/pulse.py "installs $(MXNET)" $(MXNET_VENV)/bin/python -m pip install -q $(MXNET) \
	  -r build/mxnet-requirements.txt "pytest>=8" "pytest-timeout>=2.2"
	@touch $@

# What was compiled for .venv is packed again.
build/wheel-again/.packed: $(VENV)/.wheel
	rm -rf build/wheel-again
	$(BIN)/python tools/pulse.py "packs the wheel" $(BIN)/python -m pip wheel -q --no-deps --no-build-isolation \
	  -w build/wheel-again .
	@touch $@

$(TENSORFLOW_VENV)/.wheel $(MXNET_VENV)/.wheel: %/.wheel: %/.packages build/wheel-again/.packed
	$*/bin/python -m pip install -q --no-deps --force-reinstall build/wheel-again/mlt-*.whl
	@touch $@

test-mxnet: $(MXNET_VENV)/.wheel
	$(MXNET_VENV)/bin/python -m pytest -o addopts=-ra tests/plugins/mxnet $(PYTEST_ARGS)

test-tensorflow: $(TENSORFLOW_VENV)/.wheel
	$(TENSORFLOW_VENV)/bin/python -m pytest -o addopts=-ra tests/plugins/tensorflow $(PYTEST_ARGS)

# As root; SPEED_ARGS="--workers 2 --losses 1% --turns 1": a part of it.
tensorflow-speed: $(TENSORFLOW_VENV)/.wheel
	$(BIN)/python tools/tensorflow_speed $(SPEED_ARGS)

# As root; SPEED_ARGS="--workers 2 --losses 1% --turns 1": a part of it.
mxnet-speed: $(MXNET_VENV)/.wheel
	$(BIN)/python tools/mxnet_speed $(SPEED_ARGS)

# Horovod with gloo, in environments of its own: no test needs them. Four minutes each.
build/horovod/torch/.built build/horovod/mxnet/.built: build/horovod/%/.built: tools/horovod_speed/build.sh | build/.system
	@mkdir -p build/horovod
	$(PYTHON) tools/pulse.py "builds Horovod for $*" bash tools/horovod_speed/build.sh $* build/horovod/$* \
	  $(if $(filter torch,$*),$(TORCH),$(MXNET))
	@touch $@

# As root, four minutes; HOROVOD_ARGS="--losses 1% --turns 1": a part of it.
horovod-speed: $(WHEEL_AND_TOOLS) $(MXNET_VENV)/.wheel build/horovod/torch/.built build/horovod/mxnet/.built
	$(BIN)/python tools/horovod_speed --torch build/horovod/torch/bin/python --mxnet build/horovod/mxnet/bin/python \
	  $(HOROVOD_ARGS)

# As root, ten minutes; SAME_ARGS="--frameworks torch --seeds 2": a part of it.
same-images: $(WHEEL_AND_TOOLS) $(TENSORFLOW_VENV)/.wheel $(MXNET_VENV)/.wheel
	$(BIN)/python tools/same_images $(SAME_ARGS)

# As root, four minutes; SPEED_ARGS="--models vgg --turns 1": a part of it.
cross-barrier-speed: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/cross_barrier_speed $(SPEED_ARGS)

# As root; SPEED_ARGS="--rates 200mbit --losses 1% --turns 1": a part of it.
torch-speed: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/torch_speed $(SPEED_ARGS)

# As root; an hour. ACCURACY_ARGS="--studies parts --seeds 3": a part of it, which replaces or adds only that.
torch-accuracy: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/torch_accuracy $(ACCURACY_ARGS)

# Five minutes; CALLS_ARGS="--verbs all_reduce --ranks 2": a part of it.
torch-calls: $(WHEEL_AND_TOOLS)
	$(BIN)/python tools/torch_calls.py $(CALLS_ARGS)

# As root; NCCL_SPEED_ARGS="--turns 1 --places loopback": a part of it.
nccl-speed: $(WHEEL_AND_TOOLS)
	$(BIN)/cmake --preset default
	$(BIN)/cmake --build --preset default --target mlt_nccl nccl_tcp nccl_speed
	$(BIN)/python tools/nccl_speed.py $(NCCL_SPEED_ARGS)

# PS_LITE: a tree of ps-lite of your own; else the one in BytePS's source package is downloaded.
PS_LITE ?= build/byteps/3rdparty/ps-lite
build/byteps/3rdparty/ps-lite: tools/ps_lite.py | $(VENV)/.tools
	$(BIN)/python tools/ps_lite.py $@

build-van: $(VENV)/.tools $(PS_LITE)
	bash tools/install_van_packages.sh $(PS_LITE)
	$(BIN)/cmake --preset default -DMLT_PS_LITE=$(abspath $(PS_LITE))
	$(BIN)/cmake --build --preset default --target van_programs

test-van: build-van
	$(BIN)/python -m pytest tests/plugins/byteps/test_van.py $(PYTEST_ARGS)

# Two minutes, on a quiet host; VAN_SPEED_ARGS="--turns 1": a part of it.
van-speed: build-van
	$(BIN)/python tools/van_speed.py $(VAN_SPEED_ARGS)

lint: $(WHEEL_AND_TOOLS)
	$(BIN)/ruff check python plugins switch_configs tests tools examples studies
	$(BIN)/ruff format --check python plugins switch_configs tests tools examples studies
	$(BIN)/python tools/run_mypy.py
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cc' '*.c')

format: $(VENV)/.tools
	$(BIN)/ruff check --fix-only python plugins switch_configs tests tools examples studies
	$(BIN)/ruff format python plugins switch_configs tests tools examples studies
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cc' '*.c')

clean:
	rm -rf build $(VENV) $(TENSORFLOW_VENV) $(MXNET_VENV) demo-report bench-report
