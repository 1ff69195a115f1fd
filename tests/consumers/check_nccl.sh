#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_nccl.sh <repository> <its build> <scratch> <generator> <compiler>: a project that uses zero::nccl, from the installed package and with the
# repository as a part of it, is configured, built, linked to NCCL and run. Skipped (77) where there is no CUDA toolkit or no NCCL.
set -eu
root=$1 build=$2 work=$3 generator=$4 compiler=$5

rm -rf "$work"
mkdir -p "$work/probe"
cat > "$work/probe/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "$root/cmake")
find_package(CUDAToolkit REQUIRED)
find_package(NCCL 2.18 REQUIRED)
END
if ! cmake -S "$work/probe" -B "$work/probe/build" -G "$generator" "-DCMAKE_CXX_COMPILER=$compiler" > "$work/probe.log" 2>&1; then
  echo "SKIPPED: there is no CUDA toolkit with libcudart here, or no NCCL: $(grep -m 1 'Could NOT find' "$work/probe.log" | sed 's/^ *//')"
  exit 77
fi

cmake --install "$build" --prefix "$work/first" > /dev/null
mv "$work/first" "$work/prefix"
for way in "-DCMAKE_PREFIX_PATH=$work/prefix" "-DZERO_SOURCE=$root"; do
  rm -rf "$work/build"
  cmake -S "$(dirname "$0")/nccl" -B "$work/build" -G "$generator" "-DCMAKE_CXX_COMPILER=$compiler" -DCMAKE_BUILD_TYPE=Release "$way"
  cmake --build "$work/build"
  env -u RANK -u OMPI_COMM_WORLD_RANK -u PMI_RANK -u SLURM_PROCID "$work/build/consumer"
done
