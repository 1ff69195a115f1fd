#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_component.sh <component> <repository> <its build> <scratch> <options of cmake...>: the project in the component's folder beside this file,
# which links zero::<component>, is configured, built and run, from the installed package and with the repository as a part of it. Skipped (77)
# where what the component needs is not there.
set -eu
component=$1 root=$2 build=$3 work=$4
shift 4

case $component in
  nccl) needs="find_package(CUDAToolkit REQUIRED)
find_package(NCCL 2.18 REQUIRED)" ;;
  mpi) needs="find_package(MPI 3.1 REQUIRED COMPONENTS CXX)" ;;
esac
rm -rf "$work"
mkdir -p "$work/probe"
cat > "$work/probe/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "$root/cmake")
$needs
END
if ! cmake -S "$work/probe" -B "$work/probe/build" "$@" > "$work/probe.log" 2>&1; then
  echo "SKIPPED: what zero::$component needs is not here: $(grep -m 1 'Could NOT find' "$work/probe.log" | sed 's/^ *//')"
  exit 77
fi

cmake --install "$build" --prefix "$work/first" > /dev/null
mv "$work/first" "$work/prefix"
for way in "-DCMAKE_PREFIX_PATH=$work/prefix" "-DZERO_SOURCE=$root"; do
  rm -rf "$work/build"
  cmake -S "$(dirname "$0")/$component" -B "$work/build" -DCMAKE_BUILD_TYPE=Release "$@" "$way"
  cmake --build "$work/build"
  env -u RANK -u OMPI_COMM_WORLD_RANK -u PMI_RANK -u SLURM_PROCID "$work/build/consumer"
done
