// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/communicator.hpp>
#include <zero/comm/self.hpp>

namespace {

// Everything that training needs but the reduce-scatter.
class GathersOnly {
public:
  using Device = zero::HostDevice;

  int rank() const noexcept { return 0; }
  int size() const noexcept { return 1; }
  void abort(std::exception_ptr) noexcept {}

  template <class T>
  void enqueue(zero::HostStreamRef, zero::AllGather<T> const&) {}
#if defined(ZERO_COMPILES)
  template <class T, class Op>
  void enqueue(zero::HostStreamRef, zero::ReduceScatter<T, Op> const&) {}
#endif
  template <class T, class Op>
  void enqueue(zero::HostStreamRef, zero::AllReduce<T, Op> const&) {}
  template <class T>
  void enqueue(zero::HostStreamRef, zero::Broadcast<T> const&) {}
  template <class T>
  void enqueue(zero::HostStreamRef, zero::AllToAll<T> const&) {}
  void enqueue(zero::HostStreamRef, zero::Barrier const&) {}
  template <class Body>
  void group(zero::HostStreamRef, Body&& body) {
    body();
  }
  GathersOnly split(int, int) { return *this; }
};

static_assert(zero::check_communicator<GathersOnly>());

}  // namespace
