// SPDX-License-Identifier: Apache-2.0
/// @file
/// Nothing converts to Partial.

#include <zero/comm/self.hpp>
#include <zero/tensor/sharded_tensor.hpp>

void misuse(zero::SelfCommunicator& group) {
  zero::ShardedTensor<float, zero::Replicated> tensor{group, 10, zero::host_memory()};
  auto const here = zero::HostStreamRef::calling_thread();
#if defined(ZERO_COMPILES)
  static_cast<void>(zero::convert<zero::Sharded>(group, here, tensor));
#else
  static_cast<void>(zero::convert<zero::Partial>(group, here, tensor));
#endif
}
