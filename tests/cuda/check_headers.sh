#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# with_nvcc.sh check_headers.sh <repository> <file that includes headers> <object to write> [flag...]: they compile with nvcc, warnings
# being errors.
set -eu
root=$1 source=$2 object=$3
shift 3
"$CUDACXX" -std=c++20 -I"$root/include" --Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow "$@" -c "$source" -o "$object"
