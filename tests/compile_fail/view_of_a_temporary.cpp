// SPDX-License-Identifier: Apache-2.0
/// @file
/// A conversion that moves no bytes returns a view, so its argument must live on.

#include <zero/comm/self.hpp>
#include <zero/tensor/sharded_tensor.hpp>

void misuse(zero::SelfCommunicator& group) {
  auto const here = zero::HostStreamRef::calling_thread();
#if defined(ZERO_COMPILES)
  zero::ShardedTensor<float, zero::Replicated> tensor{group, 10, zero::host_memory()};
  auto view = zero::convert<zero::Sharded>(group, here, tensor);
#else
  auto view = zero::convert<zero::Sharded>(group, here, zero::ShardedTensor<float, zero::Replicated>{group, 10, zero::host_memory()});
#endif
  static_cast<void>(view);
}
