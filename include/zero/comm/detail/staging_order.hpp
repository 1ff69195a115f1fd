// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Several streams take turns with one buffer: who is next waits until the one before has passed.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/device/device.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/wait_id.hpp>

namespace zero::detail {

/// The turns by events. The stream that had the last turn must exist when another one gets the next, and at the end. Turns that are captured
/// in a graph are in order with those of the same capture; when the graph runs is the business of who launches it.
template <Device D>
class StagingOrder {
public:
  using Stream = typename D::Stream;

  /// Calls body(), whose enqueue calls, all on `stream`, use the buffer.
  template <class Body>
  void use(Stream stream, SourceLocation, Body const& body) {
    if constexpr (CapturesGraphs<D>) {
      if (D::is_capturing(stream)) return take_turn(stream, captured_, body);
    }
    take_turn(stream, last_, body);
  }

  /// False where something may still be using the buffer.
  [[nodiscard]] bool idle() const noexcept { return !last_.stream; }

  /// Blocks the calling thread until nothing uses the buffer any more, but for graphs.
  void finish() noexcept {
    try {
      D::synchronize(last_.event);
    } catch (...) {  // Work that failed does not use it either.
    }
  }

private:
  struct Turn {
    std::optional<Stream> stream{};
    typename D::Event event{};  // Complete.
  };

  template <class Body>
  void take_turn(Stream stream, Turn& last, Body const& body) {
    if (last.stream && !(stream == *last.stream)) wait(stream, last);
    last.stream = stream;
    try {
      body();
    } catch (...) {
      last.event = D::record(stream);
      throw;
    }
    last.event = D::record(stream);
  }

  void wait(Stream stream, Turn const& last) {
    try {
      D::wait(stream, last.event, WaitId::none);
    } catch (Error const&) {
      if (&last != &captured_) throw;  // Else it was in an earlier capture, or CUDA has refused it, and ends the capture with that.
    }
  }

  Turn last_;
  Turn captured_;
};

/// The turns on the host: counted, so that no stream need exist longer than its own work.
template <>
class StagingOrder<HostDevice> {
public:
  StagingOrder() : ended_(std::make_shared<Ended>(0)) {}

  template <class Body>
  void use(HostStreamRef stream, SourceLocation where, Body const& body) {
    if (last_stream_ && !(stream == *last_stream_)) {
      stream.enqueue([ended = ended_, turns = begun_] { wait(*ended, turns); }, where);
    }
    last_stream_ = stream;
    ++begun_;
    End end(ended_);
    try {
      body();
    } catch (...) {
      try {
        stream.enqueue(std::move(end), where);  // Behind what of the body was enqueued.
      } catch (...) {                           // The stream has failed: what is queued is dropped.
      }
      throw;
    }
    stream.enqueue(std::move(end), where);
  }

  [[nodiscard]] bool idle() const noexcept { return ended_->load(std::memory_order_acquire) == begun_; }

  void finish() noexcept { wait(*ended_, begun_); }

private:
  using Ended = std::atomic<std::uint32_t>;

  /// The end of a turn, as a task: reached also where the stream fails and drops it.
  class End {
  public:
    explicit End(std::shared_ptr<Ended> ended) noexcept : ended_(std::move(ended)) {}
    End(End&& other) noexcept : ended_(std::move(other.ended_)) {}
    End& operator=(End&&) = delete;
    ~End() { (*this)(); }

    void operator()() noexcept {
      std::shared_ptr<Ended> const ended = std::move(ended_);
      if (ended == nullptr) return;
      ended->fetch_add(1, std::memory_order_acq_rel);
      ended->notify_all();
    }

  private:
    std::shared_ptr<Ended> ended_;
  };

  /// Turns may end out of order where streams have failed; the counts may wrap around.
  static void wait(Ended& ended, std::uint32_t turns) noexcept {
    while (true) {
      std::uint32_t const seen = ended.load(std::memory_order_acquire);
      if (static_cast<std::int32_t>(turns - seen) <= 0) return;
      ended.wait(seen, std::memory_order_acquire);
    }
  }

  std::shared_ptr<Ended> ended_;
  std::uint32_t begun_ = 0;
  std::optional<HostStreamRef> last_stream_;
};

}  // namespace zero::detail
