#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# with_nvcc.sh check_kernels.sh <repository> <architecture> <folder to write>
#
# 1. No kernel keeps registers in memory, as ptxas says; for sm_90 also under --use_fast_math.
# 2. The machine code of the optimizer step and of the square sum reads and writes in 128 or 256 bits, and takes no more instructions an
#    element than it did. Needs cuobjdump and nvdisasm (in the CUDA toolkit, or from PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm);
#    without them the test is skipped after the first part.
# 3. For sm_90, under --use_fast_math: divisions and roots of the step are as without it, and the sums over ranks keep denormal numbers and fuse
#    nothing.
set -eu
root=$1 arch=$2 folder=$3
mkdir -p "$folder"
object=$folder/kernels_$arch.o
fast_object=$folder/kernels_${arch}_fast.o

check_spills() {  # <object to write> [flag...]
  written=$1
  shift
  "$CUDACXX" -std=c++20 -I"$root/include" --Werror all-warnings -gencode "arch=compute_$arch,code=sm_$arch" "$@" -Xptxas -v \
    -c "$root/tests/cuda/kernels.cu" -o "$written" > "$folder/ptxas_$arch.txt" 2>&1 || { cat "$folder/ptxas_$arch.txt"; exit 1; }
  awk -v flags="$*" '
    /Compiling entry function/ { split($0, a, "\047"); kernel = a[2] }
    /bytes stack frame/ { kernels++; if ($1 + $5 + $9 > 0) { print "SPILLS " kernel ": " $0; bad = 1 } }
    /Used [0-9]+ registers/ { match($0, /Used [0-9]+ registers/); print substr($0, RSTART, RLENGTH) "  " kernel " " flags }
    END { if (kernels < 16) { print "ptxas told of " kernels + 0 " kernels only"; bad = 1 } exit bad }' "$folder/ptxas_$arch.txt"
}
[ "$arch" != 90 ] || check_spills "$fast_object" --use_fast_math
check_spills "$object"

tools=$(dirname "$CUDACXX")
PATH=$PATH:$tools
if ! cuobjdump --version > /dev/null 2>&1 || ! nvdisasm --version > /dev/null 2>&1; then
  echo "SKIPPED: there is no cuobjdump or no nvdisasm here (PyPI has them: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm), so no machine code was read"
  exit 77
fi
cuobjdump -sass "$object" > "$folder/kernels_$arch.sass"
if [ "$arch" = 90 ]; then
  cuobjdump -sass "$fast_object" > "$folder/kernels_${arch}_fast.sass"
  awk '
    FNR == 1 { file++ }
    /Function :/ { kernel = $3; if (file == 2 && kernel ~ /OrderedElement/) sums[kernel] = 1; if (kernel ~ /optimizer_step_kernel/) steps[kernel] = 1 }
    /^ *\/\*[0-9a-f]+\*\/ / {
      if (/FCHK|MUFU/) exact[file, kernel]++
      if (file == 2 && /FADD\.FTZ/) flushed_sum[kernel]++
      if (file == 2 && /(FMUL|FSETP|FSET|FMNMX|F2F)[A-Z0-9.]*\.FTZ/) flushed[kernel]++
      if (file == 2 && /FFMA|DFMA/) fused[kernel]++
      if (file == 2 && / (FADD|DADD)/) additions[kernel]++
    }
    END {
      for (kernel in steps) {
        n++
        if (!exact[1, kernel] || exact[1, kernel] != exact[2, kernel]) {
          print "OTHER divisions or roots under --use_fast_math: " exact[1, kernel] + 0 ", " exact[2, kernel] + 0 " in " kernel; bad = 1
        }
      }
      for (kernel in sums) {
        n++
        # To and from half one addition and products by 2^-24, whose operands and results are normal numbers or 0.
        half = kernel ~ /half/
        if (flushed_sum[kernel] > half || (!half && flushed[kernel] > 0) || fused[kernel] > 0) { print "DENORMALS as 0, or something fused, in " kernel; bad = 1 }
        if (kernel ~ /3Sum/ && additions[kernel] < 8) { print "NO additions found in " kernel; bad = 1 }
      }
      print "sm_90 under --use_fast_math: " n " kernels of steps and of sums over ranks"
      if (n != 13) { print "NOT all of them"; bad = 1 }
      exit bad
    }' "$folder/kernels_$arch.sass" "$folder/kernels_${arch}_fast.sass"
fi
awk -v arch="$arch" '
  # The instructions of a kernel, in order; BRA is taken as a jump forwards, CALL (the slow cases of division and root) as not executed.
  function report(  i, text, first, last, cost, target, wide_loads, wide_stores, name, least) {
    if (kernel == "") return
    for (i = 1; i <= n; ++i) {
      text = code[i]
      if (text ~ /LDG\.E\.(ENL2\.)?(128|256)/) { wide_loads[text ~ /256/ ? 256 : 128]++; if (!first) first = i }
      if (text ~ /STG\.E\.(ENL2\.)?(128|256)/) { wide_stores[text ~ /256/ ? 256 : 128]++; last = i }
      if (text ~ /^(@!?P[0-9]+ )?(LDL|STL)/) { print "LOCAL MEMORY in " kernel; bad = 1 }
    }
    for (i = 1; i <= n; ++i) cost[i] = -1
    if (first) cost[first] = 1
    for (i = first; i && i < n; ++i) {
      if (cost[i] < 0) continue
      text = code[i]
      if (text ~ /BRA/ && match(text, /0x[0-9a-f]+/)) {
        target = at[substr(text, RSTART + 2, RLENGTH - 2)]
        if (target > i && (cost[target] < 0 || cost[target] > cost[i] + 1)) cost[target] = cost[i] + 1
        if (text !~ /^@/ && text !~ /BRA[.A-Z]* !?U?P/) continue
      }
      if (text ~ /^(CALL|EXIT|RET)/) continue
      if (cost[i + 1] < 0 || cost[i + 1] > cost[i] + 1) cost[i + 1] = cost[i] + 1
    }
    least = last ? cost[last] : -1
    if (kernel ~ /optimizer_step_kernelILb1ENS_5AdamWEfNS_4bf16ES3_/) {
      seen++
      printf "sm_%s AdamW, bf16: %d + %d loads, %d + %d stores of 128 + 256 bits, %.1f instructions an element from the first to the last\n", arch, wide_loads[128], wide_loads[256], wide_stores[128], wide_stores[256], least / 8
      if (arch >= 100 ? wide_loads[128] != 1 || wide_loads[256] != 3 || wide_stores[128] != 1 || wide_stores[256] != 3 : wide_loads[128] != 7 || wide_stores[128] != 7) { print "NOT the accesses of 28 bytes an element"; bad = 1 }
      if (least < 8 * 30 || least > 8 * 54) { print "NOT the instructions that it was"; bad = 1 }
    }
    if (kernel ~ /square_sum_kernelI(f|NS_4bf16E)E/) {
      seen++
      printf "sm_%s square sum, %s: %d loads of 128 bits\n", arch, kernel ~ /bf16/ ? "bf16" : "fp32", wide_loads[128]
      if (wide_loads[128] != 8) { print "NOT the 8 rows of a block"; bad = 1 }
    }
  }
  /Function :/ { report(); kernel = $3; n = 0; split("", at); split("", code) }
  /^ *\/\*[0-9a-f]+\*\/ / {
    line = $0
    sub(/^ *\/\*0*/, "", line)
    address = line; sub(/\*\/.*/, "", address)
    sub(/^[0-9a-f]*\*\/ */, "", line); sub(/ *;.*/, "", line)
    code[++n] = line; at[address] = n
  }
  END { report(); if (seen != 3) { print "found " seen + 0 " of 3 kernels"; bad = 1 } exit bad }' "$folder/kernels_$arch.sass"
