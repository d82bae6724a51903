#!/bin/sh
# Runs the benchmarks of a build folder.   bench.sh BUILD_DIR
set -eu
exec "$1/bench/ce_cpu"
