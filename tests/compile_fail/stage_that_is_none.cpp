// SPDX-License-Identifier: Apache-2.0
/// @file
/// A stage whose optimizer states are a pending sum.

#include <zero/zero.hpp>

struct Wrong {
  using parameters = zero::Replicated;
  using gradients = zero::Partial;
#if defined(ZERO_COMPILES)
  using optimizer_states = zero::Sharded;
#else
  using optimizer_states = zero::Partial;
#endif
};

void misuse(zero::SelfCommunicator& group, zero::ParameterLayout const& layout) {
  auto const here = zero::HostStreamRef::calling_thread();
  auto parameters = zero::shard_parameters<Wrong, zero::Precision<float>>(layout, group, {here, here}, zero::host_memory());
}
