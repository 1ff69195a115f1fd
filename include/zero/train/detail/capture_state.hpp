// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Whether passes and steps go into a graph at the moment.

#include <string>

#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/device.hpp>

namespace zero::detail {

/// An optimizer that steps in a graph, and how its options get to where the graph reads them.
struct CapturedOptimizer {
  void* optimizer;
  void (*upload_options)(void* optimizer, SourceLocation where);
};

/// The capture under way, if one is.
class CaptureState {
public:
  [[nodiscard]] bool active() const noexcept { return optimizers_ != nullptr; }
  /// @param optimizers  where those that step meanwhile are listed
  void begin(PlainArray<CapturedOptimizer>& optimizers) noexcept { optimizers_ = &optimizers; }
  void end() noexcept { optimizers_ = nullptr; }
  void add(CapturedOptimizer optimizer) {
    for (CapturedOptimizer const& known : *optimizers_) {
      if (known.optimizer == optimizer.optimizer) return;
    }
    optimizers_->push_back(optimizer);
  }

  /// Refuses captures by calls of the device's own: steps that never ran would be counted.
  template <class Device>
  void check_known([[maybe_unused]] char const* call, [[maybe_unused]] typename Device::Stream stream, [[maybe_unused]] int rank,
                   [[maybe_unused]] SourceLocation where) const {
    if constexpr (CapturesGraphs<Device>) {
      if (active() || !Device::is_capturing(stream)) return;
      throw UsageError(std::string(call) + ": the stream is being captured, but not by these parameters' capture()", where, rank);
    }
  }

private:
  PlainArray<CapturedOptimizer>* optimizers_ = nullptr;
};

}  // namespace zero::detail
