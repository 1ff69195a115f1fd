// SPDX-License-Identifier: Apache-2.0
/// @file
/// An optimizer whose states are placed for another stage than its parameters'.

#include <zero/zero.hpp>

#if defined(ZERO_COMPILES)
using StageOfOptimizer = zero::Stage3;
#else
using StageOfOptimizer = zero::Stage0;
#endif

void misuse(zero::SelfCommunicator& group, zero::ParameterLayout const& layout) {
  auto const here = zero::HostStreamRef::calling_thread();
  auto parameters = zero::shard_parameters<zero::Stage3, zero::Precision<float>>(layout, group, {here, here}, zero::host_memory());
  zero::ShardedOptimizer<zero::AdamW, StageOfOptimizer> optimizer{parameters};
}
