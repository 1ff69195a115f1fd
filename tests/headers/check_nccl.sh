#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_nccl.sh <repository> <file that includes all nccl headers, without .cpp or .cu> <object to write> <toolkit|wheel> <compiler>: the headers
# of the NCCL communicator compile, warnings being errors, against the NCCL of the CUDA toolkit (or of the system), or the newer one of a Python
# wheel (nvidia-nccl-cu13 and its like; ZERO_NCCL_WHEEL is the folder above include/, else python3 is asked for an installed one). No device
# is needed. What is not here is skipped (77).
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
  wheel)
    folder=${ZERO_NCCL_WHEEL:+$ZERO_NCCL_WHEEL/include}
    [ -n "$folder" ] || folder=$(python3 -c 'import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], "include"))' 2> /dev/null) || folder=none
    [ -f "$folder/nccl.h" ] || skip "there is no wheel of NCCL here (pip download nvidia-nccl-cu13, unpack it, and set ZERO_NCCL_WHEEL to its nvidia/nccl)"
    ;;
esac
version=$(awk '$1 == "#define" && $2 ~ /^NCCL_(MAJOR|MINOR|PATCH)$/ { printf "%s%s", dot, $3; dot = "." }' "$folder/nccl.h")
echo "NCCL $version of $folder with $compiler"

if [ "$compiler" = nvcc ]; then
  "$nvcc" -std=c++20 -I"$root/include" -isystem "$folder" --Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow -c "$source.cu" -o "$object"
else
  "$compiler" -std=c++20 -O0 -I"$root/include" -isystem "$folder" -isystem "$cuda" -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror \
    -c "$source.cpp" -o "$object"
fi
