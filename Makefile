# The everyday commands on top of CMake. Everything here can be done with cmake, ctest and the
# scripts alone; this file names the steps, and installs missing packages first (scripts/need.sh;
# WEFT_NO_INSTALL=1 keeps it from that).
#
#   make            library and program, in $(BUILD)
#   make run        the main job: train a small language model at 4 ranks, verify, plot
#   make test       everything that CI runs        make test-full   the long products as well
#   make test-gpu   on a machine with an NVIDIA GPU and nvcc: every test of the GPU's code there, and of what it and
#                   loom must answer alike, to the bit
#   make check      device code in loom, without a GPU: 3 seeds of everything (part of make test)
#   make check-full the long form, resumable: 200 seeds
#   make bench      time and memory against bare matrix products
#   make bench-gpu  on such a GPU machine: every kernel against cuBLAS or a copy, and the loss heads of other
#                   packages where they are installed; JSON in bench/results/
#   make install PREFIX=/usr/local [DESTDIR=]
#   make man        manual pages, in $(BUILD)/man  make format      clang-format the sources
#   make clean

export CMAKE_FLAGS
BUILD  ?= build
PREFIX ?= /usr/local
CONFIGURE = cmake -S . -B $(BUILD) -G Ninja $(CMAKE_FLAGS)

.DEFAULT_GOAL := all
.PHONY: all run test test-full test-gpu check check-full bench bench-gpu install man format clean

all:
	@scripts/need.sh build
	@test -f $(BUILD)/build.ninja || $(CONFIGURE)
	@cmake --build $(BUILD)

run:
	@scripts/need.sh build run
	@$(MAKE) --no-print-directory all
	@scripts/run_main_job.sh $(BUILD)

test:
	@scripts/need.sh build test
	@scripts/need.sh mpi || echo "make $@: no MPI: its transport is neither built nor tested" >&2
	@BUILD=$(BUILD) scripts/test.sh

test-full:
	@scripts/need.sh build test
	@scripts/need.sh mpi || echo "make $@: no MPI: its transport is neither built nor tested" >&2
	@BUILD=$(BUILD) WEFT_TEST_FULL=1 scripts/test.sh

test-gpu:
	@scripts/test_gpu.sh $(BUILD)-gpu || [ $$? = 77 ]

check: all
	@scripts/check.sh quick $(BUILD)

check-full: all
	@scripts/check.sh full $(BUILD)

bench: all
	@scripts/bench.sh $(BUILD)

bench-gpu:
	@scripts/bench_gpu.sh $(BUILD)-gpu $(BENCH) || [ $$? = 77 ]

install:
	@scripts/need.sh build
	@$(CONFIGURE) -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX))
	@cmake --build $(BUILD)
	@cmake --install $(BUILD)
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig || /sbin/ldconfig; fi

man:
	@scripts/need.sh build
	@test -f $(BUILD)/build.ninja || $(CONFIGURE)
	@cmake --build $(BUILD) --target man

format:
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan
