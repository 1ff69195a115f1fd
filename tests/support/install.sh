# SPDX-License-Identifier: Apache-2.0
# Sourced by tests/run and examples/gpt/run: `require <thing>...` finds what a build needs, or installs it, or says what is missing.
#
# What is there is found by using it, not by asking the package manager: a tool may come from elsewhere. On Debian and its relatives what
# is missing is installed by apt-get when that is possible without asking anybody. Nothing is installed when nothing is missing.

# Sets `package` for a thing, and answers whether the thing is there.
have() {
  case $1 in
    g++) package=g++; g++ --version ;;
    cmake) package=cmake; cmake --version && cmake_is_new_enough ;;
    ninja) package=ninja-build; ninja --version ;;
    git) package=git; git --version ;;
    doctest) package=doctest-dev; header_exists doctest/doctest.h ;;
    cblas) package=libopenblas-pthread-dev; header_exists cblas.h && ! blas_is_serial ;;
    clang) package=clang; clang++ --version ;;
    clang-format) package=clang-format-16; clang-format-16 --version || clang-format --version | grep -q 'version 16\.' ;;
    clang-tidy) package=clang-tidy-14; clang-tidy-14 --version || clang-tidy --version ;;
    openmpi) package="libopenmpi-dev openmpi-bin"; mpicxx.openmpi --version && mpirun.openmpi --version ;;
    mpich) package="libmpich-dev mpich"; mpicxx.mpich --version && mpirun.mpich --version ;;
    ip) package=iproute2; ip -V ;;
    valgrind) package=valgrind; valgrind --version ;;
    *) echo "install.sh does not know \`$1\`" >&2; exit 2 ;;
  esac > /dev/null 2>&1
}

cmake_is_new_enough() {
  [ "$(printf '%s\n' 3.25 "$(cmake --version | sed -n 's/^cmake version //p')" | sort -V | head -n 1)" = 3.25 ]
}

header_exists() { echo "#include <$1>" | g++ -x c++ -E - -o /dev/null; }

# OpenBLAS without threads is not for programs with threads: it gives them wrong products.
blas_is_serial() {
  local program serial=1
  program=$(mktemp)
  if echo '#include <cblas.h>
           int main() { return openblas_get_parallel() == 0 ? 0 : 1; }' | g++ -x c++ - -o "$program" -lopenblas; then
    "$program" && serial=0
  fi
  rm -f "$program"
  return $serial
}

# The first things decide whether the later ones are found (headers are looked for with g++), so this is asked again after installing.
missing_packages() {
  local thing package
  for thing in "$@"; do
    have "$thing" || echo "$package"
  done
}

# apt-get's own errors, without the addresses it talks to.
apt_errors() { grep -E '^[EW]:' "$1" | sed -E 's#(https?|ftp)://[^ ]*#<mirror>#g; s/'"'"'[a-z0-9.-]+\.[a-z]+'"'"'/<mirror>/g' | head -n 20; }

# What the CUDA tests can use and a toolkit may lack, from Python's package index, in build/tools: the oldest and the newest NCCL to compile against,
# NVIDIA's disassembler. Where that does not work the tests that need them are skipped.
fetch_cuda_tools() {
  local tools=$PWD/build/tools
  mkdir -p "$tools"
  if ! [ -f "$tools/complete" ]; then
    {
      python3 -m pip install --quiet --no-deps --target "$tools/oldest" nvidia-nccl-cu12==2.18.3 &&
        python3 -m pip install --quiet --no-deps --target "$tools/newest" nvidia-nccl-cu13==2.32.3 nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37 &&
        touch "$tools/complete"
    } > "$tools/log" 2>&1 < /dev/null || true
  fi
  export ZERO_NCCL_OLDEST=$tools/oldest/nvidia/nccl ZERO_NCCL_NEWEST=$tools/newest/nvidia/nccl PATH=$PATH:$tools/newest/nvidia/cu13/bin
}

require() {
  local missing as_root log
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  missing=$(echo "$missing" | tr '\n' ' ')
  if ! command -v apt-get > /dev/null; then
    echo "missing, in Debian's names: $missing(there is no apt-get here to install them)" >&2
    return 1
  fi
  if [ "$(id -u)" = 0 ]; then
    as_root="env"
  elif sudo -n true 2> /dev/null; then
    as_root="sudo -n env"
  else
    echo "missing: $missing" >&2
    echo "Install them, for example: sudo apt-get update && sudo apt-get install $missing" >&2
    return 1
  fi
  echo "installing: $missing"
  log=$(mktemp)
  local apt="$as_root DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0"
  # An update may fail in part where some source is out of reach: whether that mattered shows in the installation.
  # shellcheck disable=SC2086
  if ! { $apt update; $apt install -y --no-install-recommends $missing; } > "$log" 2>&1 < /dev/null; then
    apt_errors "$log" >&2
    echo "apt-get could not install: $missing" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
  hash -r
  missing=$(missing_packages "$@")
  if [ -n "$missing" ]; then
    echo "still missing after the installation: $(echo "$missing" | tr '\n' ' ')" >&2
    return 1
  fi
}
