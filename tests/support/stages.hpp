// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Stages beyond those that have names.

namespace zero::test {

/// Placements of parameters, gradients and optimizer states.
template <class P, class G, class O>
struct Triple {
  using parameters = P;
  using gradients = G;
  using optimizer_states = O;
};

}  // namespace zero::test
