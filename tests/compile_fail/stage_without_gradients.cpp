// SPDX-License-Identifier: Apache-2.0
/// @file
/// A type that is no stage at all.

#include <zero/zero.hpp>

struct Wrong {
  using parameters = zero::Sharded;
  using optimizer_states = zero::Sharded;
#if defined(ZERO_COMPILES)
  using gradients = zero::Sharded;
#endif
};

void misuse(zero::SelfCommunicator& group, zero::ParameterLayout const& layout) {
  auto const here = zero::HostStreamRef::calling_thread();
  auto parameters = zero::shard_parameters<Wrong, zero::Precision<float>>(layout, group, {here, here}, zero::host_memory());
}
