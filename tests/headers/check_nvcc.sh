#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_nvcc.sh <repository> <file that includes all .hpp headers> <object to write>: the headers compile with nvcc, warnings being errors.
# No device is needed. Without nvcc the check is skipped (77).
set -eu
root=$1 source=$2 object=$3

nvcc=${CUDACXX:-}
[ -n "$nvcc" ] || nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
if ! "$nvcc" --version > /dev/null 2>&1; then
  echo "SKIPPED: there is no nvcc here (looked at CUDACXX, PATH and /usr/local/cuda/bin), so nothing was compiled for CUDA"
  exit 77
fi
"$nvcc" --version | tail -n 2
"$nvcc" -std=c++20 -I"$root/include" --Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow -c "$source" -o "$object"
