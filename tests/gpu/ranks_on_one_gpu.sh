#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ranks_on_one_gpu.sh <program> <ranks> <version of NCCL>: starts the program once for each rank, all on the first GPU, with the variables of
# torchrun. NCCL takes several ranks on one GPU where it is told to (from 2.30.3); an older one takes processes for ranks of several hosts where
# their NCCL_HOSTID differs, and they talk over sockets of the loopback interface.
set -uo pipefail
program=$1 ranks=$2 version=$3

visible=${CUDA_VISIBLE_DEVICES:-0}
export CUDA_VISIBLE_DEVICES=${visible%%,*}
export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000))
hosts=0
if [ "$(printf '%s\n' 2.30.3 "$version" | sort -V | head -n 1)" = 2.30.3 ]; then
  export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-4}
else
  hosts=1
  export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
fi

processes=()
for ((rank = 0; rank < ranks; ++rank)); do
  export RANK=$rank LOCAL_RANK=$rank
  [ $hosts = 0 ] || export NCCL_HOSTID=zero-test-$rank
  "$program" > >(sed "s/^/rank $rank: /") 2>&1 < /dev/null &
  processes+=($!)
done

failed=0 skipped=0
for process in "${processes[@]}"; do
  wait "$process"
  case $? in
    0) ;;
    77) skipped=1 ;;
    *) failed=1 ;;
  esac
done
sleep 0.2  # for the last lines of sed
[ $failed = 0 ] || exit 1
[ $skipped = 0 ] || exit 77
