#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# with_nvcc.sh <command...>: runs a command with CUDACXX set to an nvcc, or skips (77) where there is none. No device is needed.
set -eu
nvcc=${CUDACXX:-}
[ -n "$nvcc" ] || nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
if ! "$nvcc" --version > /dev/null 2>&1; then
  echo "SKIPPED: there is no nvcc here (looked at CUDACXX, PATH and /usr/local/cuda/bin), so nothing was compiled for CUDA"
  exit 77
fi
"$nvcc" --version | tail -n 2
CUDACXX=$nvcc
export CUDACXX
exec "$@"
