// SPDX-License-Identifier: Apache-2.0
/// @file
/// A consumer's program over NCCL: linked to NCCL itself, which starts without a GPU too. It expects to be started without a launcher.

#include <zero/comm/nccl_start.hpp>

#include <cstdio>
#include <string>

int main() {
#if !defined(ZERO_HAS_CUDA) || !defined(ZERO_HAS_NCCL)
#error "zero::nccl does not say what there is"
#endif
  std::printf("NCCL %s\n", zero::detail::nccl_version_text(zero::nccl_version()).c_str());
  try {
    zero::NcclCommunicator const comm = zero::nccl_from_environment();
  } catch (zero::UsageError const& error) {
    std::printf("%s\n", error.what());
    return std::string(error.what()).find("no launcher has set this process's rank") != std::string::npos ? 0 : 1;
  }
  return 1;
}
