#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_nccl.sh <repository> <file that includes all nccl headers, without .cpp or .cu> <object to write> <toolkit|oldest|newest> <compiler>: the
# headers of the NCCL communicator compile, warnings being errors, against the NCCL of the CUDA toolkit (or of the system), against the oldest one
# that is supported, or against the newest one that was tried. Those two are Python wheels that tests/run fetches: ZERO_NCCL_OLDEST and
# ZERO_NCCL_NEWEST are the folders above their include/. No device is needed. What is not here is skipped (77).
set -eu
root=$1 source=$2 object=$3 nccl=$4 compiler=$5

skip() {
  echo "SKIPPED: $*"
  exit 77
}

nvcc=${CUDACXX:-}
[ -n "$nvcc" ] || nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
if [ "$compiler" = nvcc ]; then
  "$nvcc" --version > /dev/null 2>&1 || skip "there is no nvcc here (looked at CUDACXX, PATH and /usr/local/cuda/bin)"
else
  command -v "$compiler" > /dev/null || skip "there is no $compiler here"
fi

cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include
[ -f "$cuda/cuda_runtime.h" ] || cuda=/usr/local/cuda/include
[ -f "$cuda/cuda_runtime.h" ] || cuda=/usr/include
[ -f "$cuda/cuda_runtime.h" ] || skip "there are no CUDA headers here"

case $nccl in
  toolkit)
    for folder in "$cuda" /usr/local/include /usr/include none; do
      [ -f "$folder/nccl.h" ] && break
    done
    [ "$folder" != none ] || skip "the CUDA toolkit here has no nccl.h, nor has the system"
    ;;
  oldest) folder=${ZERO_NCCL_OLDEST:-none}/include ;;
  newest) folder=${ZERO_NCCL_NEWEST:-none}/include ;;
esac
[ -f "$folder/nccl.h" ] || skip "there is no wheel of NCCL here (ZERO_NCCL_OLDEST, ZERO_NCCL_NEWEST; tests/run fetches them)"
version=$(awk '$1 == "#define" && $2 ~ /^NCCL_(MAJOR|MINOR|PATCH)$/ { printf "%s%s", dot, $3; dot = "." }' "$folder/nccl.h")
echo "NCCL $version of $folder with $compiler"

if [ "$compiler" = nvcc ]; then
  "$nvcc" -std=c++20 -I"$root/include" -isystem "$folder" --Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow -c "$source.cu" -o "$object"
else
  "$compiler" -std=c++20 -O0 -I"$root/include" -isystem "$folder" -isystem "$cuda" -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror \
    -c "$source.cpp" -o "$object"
fi
