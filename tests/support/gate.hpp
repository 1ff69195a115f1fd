// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A gate that holds a task back until the test opens it, so that tests of order need no clock.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace zero::test {

/// Closed at first. Whoever passes waits until it is open; it stays open.
class Gate {
public:
  void open() noexcept {
    open_.store(1);
    open_.notify_all();
  }
  void pass() noexcept {
    arrived_.store(1);
    arrived_.notify_all();
    open_.wait(0);
  }
  /// Blocks until somebody stands at the gate.
  void wait_for_arrival() noexcept { arrived_.wait(0); }

private:
  std::atomic<std::uint32_t> open_ = 0;
  std::atomic<std::uint32_t> arrived_ = 0;
};

/// Whether an event comes while a gate is closed. Where it cannot, the test goes on after a while, and fails.
template <class Event>
[[nodiscard]] bool comes(Event const& event) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!event.ready() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return event.ready();
}

/// Opens a gate at the end of the scope: a failed check must not leave a stream's destructor waiting for ever.
class OpenAtEnd {
public:
  explicit OpenAtEnd(Gate& gate) noexcept : gate_(gate) {}
  OpenAtEnd(OpenAtEnd const&) = delete;
  OpenAtEnd& operator=(OpenAtEnd const&) = delete;
  ~OpenAtEnd() { gate_.open(); }

private:
  Gate& gate_;
};

}  // namespace zero::test
