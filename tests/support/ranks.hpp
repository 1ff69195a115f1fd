// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The number of ranks a test program was started with (`--ranks=N`).

namespace zero::test {

/// The number of ranks this program was asked to run with; 4 where it was not asked.
int ranks() noexcept;

}  // namespace zero::test
