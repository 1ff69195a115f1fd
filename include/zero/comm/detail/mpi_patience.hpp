// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// How to wait for what only looking brings on: MPI makes no progress unless it is called.

#include <zero/comm/mpi_error.hpp>

#include <chrono>
#include <cstdint>
#include <thread>

#include <zero/device/host_stream_core.hpp>

namespace zero::detail {

/// Between looks at something that has not happened yet: at first no pause, then the processor is offered to others, then short sleeps.
/// On a busy machine who offers gets it back late, who sleeps is woken in time; on an idle one an offer costs nothing.
class MpiPatience {
public:
  explicit MpiPatience(std::int64_t deadline_ms) noexcept : deadline_ms_(deadline_ms), start_(MPI_Wtime()) {}

  /// To be called after each look that found nothing. True now and then: time for what is done seldom.
  bool pause() noexcept {
    if (++looks_ <= spins) {
      relax_processor();
      return false;
    }
    if (passed_ms_ < sleeps_after_ms) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(10));
    passed_ms_ = (MPI_Wtime() - start_) * 1e3;
    return looks_ % seldom == 0;
  }
  [[nodiscard]] bool overdue() const noexcept { return deadline_ms_ > 0 && passed_ms_ > static_cast<double>(deadline_ms_); }

private:
  static constexpr std::int64_t spins = 32;
  static constexpr std::int64_t seldom = 4;
  static constexpr double sleeps_after_ms = 5;

  std::int64_t deadline_ms_;
  double start_;
  double passed_ms_ = 0;
  std::int64_t looks_ = 0;
};

}  // namespace zero::detail
