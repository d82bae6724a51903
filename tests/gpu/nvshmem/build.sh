#!/bin/sh
# build.sh BUILD_DIR: builds the NVSHMEM probe beside the GPU tests that are already built there, where NVSHMEM is found
# (NVSHMEM_HOME, or the Python wheel nvidia-nvshmem-cu13). Prints the directory of NVSHMEM; exits with 77 without one.
set -eu
build=$1
here=$(dirname "$0")
home=${NVSHMEM_HOME:-}
if [ -z "$home" ]; then
  header=$(find / -path '*/nvshmem/include/nvshmem.h' -not -path '/proc/*' 2>/dev/null | head -1)
  home=${header%/include/nvshmem.h}
fi
[ -f "$home/lib/libnvshmem_device.a" ] || exit 77
cuda=$(dirname "$(dirname "$(realpath "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")
PATH=$cuda/bin:$PATH
nvcc -rdc=true -dc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I"$home/include" -I"$here/../../../src" \
  -o "$build/courier.o" "$here/courier.cu" &
c++ -std=c++17 -O2 -I"$home/include" -I"$cuda/include" -I"$cuda/include/cccl" -c "$here/shim.cpp" -o "$build/shim.o"
cc -std=c11 -O2 -I"$here/../../../src" -I"$here/../../../include" -c "$here/probe.c" -o "$build/probe.o"
wait $!
nvlink -arch=sm_90a "$build/courier.o" "$home/lib/libnvshmem_device.a" -o "$build/courier.cubin"
c++ "$build/probe.o" "$build/shim.o" "$build/libgpu_test_support.a" -L"$home/lib" -l:libnvshmem_host.so.3 \
  -Wl,-rpath,"$home/lib" -lpthread -ldl -lm -o "$build/gpu_nvshmem"
echo "$home"
