// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The end of a group whose rank gives up.

#include <exception>

#include <zero/core/error.hpp>

namespace zero::detail {

/// Tells the peers that this rank will not come.
template <class Group>
void abort_group(Group& group, char const* why) noexcept {
  try {
    group.abort(std::make_exception_ptr(CommunicationError(why, group.rank())));
  } catch (...) {  // no memory for the text
    group.abort(std::current_exception());
  }
}

}  // namespace zero::detail
