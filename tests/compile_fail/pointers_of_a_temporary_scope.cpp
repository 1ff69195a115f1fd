// SPDX-License-Identifier: Apache-2.0
/// @file
/// Pointers taken from weights that are let go of at the end of the statement would point to other weights soon.

#include <zero/comm/threads.hpp>
#include <zero/train/sharded_parameters.hpp>

float misuse(zero::ShardedParameters<zero::Stage3, zero::Precision<float>, zero::ThreadCommunicator>& parameters, zero::Unit unit) {
  auto pass = parameters.inference_pass();
#if defined(ZERO_COMPILES)
  auto const weights = pass.gather(unit);
  auto const [first, second] = zero::pointers<2>(weights);
#else
  auto const [first, second] = zero::pointers<2>(pass.gather(unit));
#endif
  return first[0] + second[0];
}
