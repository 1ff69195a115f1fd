// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Collectives of a group of one rank: an alias or a local copy, no bytes from anywhere.

#include <cstdint>

#include <zero/comm/operations.hpp>
#include <zero/core/config.hpp>
#include <zero/core/element.hpp>

namespace zero::detail {

/// to[i] = round(factor * from[i]), as a reduction over more ranks would.
template <class T>
struct Scaled {
  T const* from;
  T* to;
  float factor;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const noexcept {
    using C = compute_t<T>;
    to[i] = static_cast<T>(static_cast<C>(static_cast<C>(from[i]) * static_cast<C>(factor)));
  }
};

template <class D, class Operation>
void enqueue_alone(typename D::Stream stream, Operation const& operation) {
  if constexpr (requires { operation.own_part; }) {
    if (!operation.own_part) return;
  }
  if constexpr (requires { operation.send; }) {
    using T = typename Operation::element;
    if constexpr (requires { operation.factor; } && RealElement<T>) {
      if (operation.factor != 1.0f) {
        D::for_each(stream, operation.count, Scaled<T>{operation.send, operation.receive, operation.factor});
        return;
      }
    }
    if (operation.send != operation.receive) {
      D::copy(stream, operation.receive, operation.send, operation.count * static_cast<std::int64_t>(sizeof(T)));
    }
  }
}

}  // namespace zero::detail
