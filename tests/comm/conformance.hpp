// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What every communicator must do, run over each model: `conformance<Model>(ranks)`. A model has a static `run(ranks, body)` that calls
/// `body(communicator)` on every rank. Real sums are of small integers, so that every order of adding gives the same bits. A device other
/// than the host specialises `DeviceTraits`.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/host_stream.hpp>

namespace zero::test {

/// What these tests need of a device: streams, memory that both it and the host can use, and host code that runs in stream order.
template <class D>
struct DeviceTraits;

template <>
struct DeviceTraits<HostDevice> {
  using Stream = HostStream;
  template <class T>
  using Allocator = std::allocator<T>;
  /// A group of one rank multiplies too.
  static constexpr bool scales_alone = true;

  static Stream make_stream(bool worker) { return HostStream({.worker = worker}); }
  template <class F>
  static void call_on(HostStreamRef stream, F f) {
    stream.enqueue(f);
  }
};

template <class C>
using TraitsOf = DeviceTraits<typename C::Device>;

/// Elements that the communicator's device can use.
template <class C, class T>
using Elements = std::vector<T, typename TraitsOf<C>::template Allocator<T>>;

template <class C, class T>
Elements<C, T> on_device(std::vector<T> const& elements) {
  return Elements<C, T>(elements.begin(), elements.end());
}

inline constexpr std::int64_t odd_counts[] = {0, 1, 2, 3, 15, 16, 17, 31, 33, 127, 1000, 4099, 20011};

/// The element that `rank` contributes at `i`: 0 to 3, so that sums of 64 ranks are exact in every type.
template <Element T>
T element_at(int rank, std::int64_t i) {
  return element_cast<T>(static_cast<compute_t<T>>((static_cast<std::int64_t>(rank) * 7 + i * 5 + i / 3) % 4));
}

template <Element T>
std::vector<T> elements_of(int rank, std::int64_t count, std::int64_t first = 0) {
  std::vector<T> result(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) result[static_cast<std::size_t>(i)] = element_at<T>(rank, first + i);
  return result;
}

/// What the sum (or the largest value) over all ranks is at `i`.
template <Element T, class Op>
T reduced_at(int ranks, std::int64_t i, float factor = 1) {
  double result = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const value = static_cast<double>(static_cast<compute_t<T>>(element_at<T>(rank, i)));
    result = std::is_same_v<Op, Sum> ? result + value : value > result ? value : result;
  }
  return element_cast<T>(static_cast<compute_t<T>>(result * static_cast<double>(factor)));
}

template <Element T>
bool same_bits(T const* a, T const* b, std::int64_t count) {
  return count == 0 || std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(T)) == 0;
}

template <Element T, class A>
T* at(std::vector<T, A>& elements, std::int64_t i = 0) {
  return elements.data() + i;
}

template <Element T, class Op>
std::vector<T> reduced(int ranks, std::int64_t first, std::int64_t count, float factor = 1) {
  std::vector<T> result(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) result[static_cast<std::size_t>(i)] = reduced_at<T, Op>(ranks, first + i, factor);
  return result;
}

inline Label const label_of_tests{.subject = Subject::user, .index = 7};

template <Element T, class C>
bool gathers_in_rank_order(C& comm, StreamOf<C> stream, std::int64_t count) {
  std::vector<T> expected;
  for (int rank = 0; rank < comm.size(); ++rank) {
    std::vector<T> const part = elements_of<T>(rank, count);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  auto const send = on_device<C>(elements_of<T>(comm.rank(), count));
  Elements<C, T> receive(static_cast<std::size_t>(count * comm.size()));
  Elements<C, T> in_place(receive.size());
  std::copy(send.begin(), send.end(), in_place.begin() + comm.rank() * count);
  comm.enqueue(stream, AllGather<T>{.send = send.data(), .receive = receive.data(), .count = count, .label = label_of_tests});
  comm.enqueue(stream, AllGather<T>{.send = at(in_place, comm.rank() * count), .receive = at(in_place), .count = count});
  stream.synchronize();
  return receive.size() == expected.size() && same_bits(at(receive), at(expected), count * comm.size()) &&
         same_bits(at(in_place), at(expected), count * comm.size());
}

template <Element T, class Op, class C>
bool reduce_scatters(C& comm, StreamOf<C> stream, std::int64_t count, float factor = 1) {
  std::vector<T> const expected = reduced<T, Op>(comm.size(), comm.rank() * count, count, factor);
  auto send = on_device<C>(elements_of<T>(comm.rank(), count * comm.size()));
  auto const before = send;
  Elements<C, T> receive(static_cast<std::size_t>(count));
  comm.enqueue(stream, ReduceScatter<T, Op>{.send = at(send), .receive = at(receive), .count = count, .factor = factor});
  stream.synchronize();
  bool passed = same_bits(at(receive), expected.data(), count) && same_bits(at(send), before.data(), count * comm.size());
  comm.enqueue(stream, ReduceScatter<T, Op>{.send = at(send), .receive = at(send, comm.rank() * count), .count = count, .factor = factor});
  stream.synchronize();
  for (int part = 0; part < comm.size(); ++part) {
    passed = passed && same_bits(at(send, part * count), part == comm.rank() ? expected.data() : before.data() + part * count, count);
  }
  return passed;
}

template <Element T, class Op, class C>
bool all_reduces(C& comm, StreamOf<C> stream, std::int64_t count, float factor = 1) {
  std::vector<T> const expected = reduced<T, Op>(comm.size(), 0, count, factor);
  auto send = on_device<C>(elements_of<T>(comm.rank(), count));
  auto const before = send;
  Elements<C, T> receive(send.size());
  comm.enqueue(stream, AllReduce<T, Op>{.send = at(send), .receive = at(receive), .count = count, .factor = factor});
  stream.synchronize();
  bool const passed = same_bits(at(receive), expected.data(), count) && same_bits(at(send), before.data(), count);
  comm.enqueue(stream, AllReduce<T, Op>{.send = at(send), .receive = at(send), .count = count, .factor = factor});
  stream.synchronize();
  return passed && same_bits(at(send), expected.data(), count);
}

template <Element T, class C>
bool broadcasts(C& comm, StreamOf<C> stream, std::int64_t count) {
  bool passed = true;
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<T> const expected = elements_of<T>(root, count);
    auto buffer = on_device<C>(comm.rank() == root ? expected : std::vector<T>(expected.size()));
    comm.enqueue(stream, Broadcast<T>{.buffer = at(buffer), .count = count, .root = root});
    stream.synchronize();
    passed = passed && same_bits(at(buffer), expected.data(), count);
  }
  return passed;
}

template <Element T, class C>
bool all_to_alls(C& comm, StreamOf<C> stream, std::int64_t count) {
  auto const send = on_device<C>(elements_of<T>(comm.rank(), count * comm.size()));
  Elements<C, T> receive(send.size());
  comm.enqueue(stream, AllToAll<T>{.send = send.data(), .receive = at(receive), .count = count});
  // The last third of each part.
  std::int64_t const some = count / 3;
  Elements<C, T> cut(static_cast<std::size_t>(some * comm.size()));
  comm.enqueue(stream, AllToAll<T>{.send = send.data() + (count - some), .receive = at(cut), .count = some, .stride = count});
  // With a part behind them that stays as it is.
  auto others = on_device<C>(elements_of<T>(comm.rank() + 1, comm.size() * some + 1));
  auto const before = others;
  std::int64_t const end = (comm.size() - 1) * some;
  comm.enqueue(stream,
               AllToAll<T>{.send = send.data() + (count - some), .receive = at(others), .count = some, .stride = count, .own_part = false});
  stream.synchronize();
  bool passed = same_bits(at(others, end), before.data() + end, some + 1);
  for (int from = 0; from < comm.size(); ++from) {
    std::vector<T> const expected = elements_of<T>(from, count, comm.rank() * count);
    passed = passed && same_bits(at(receive, from * count), expected.data(), count);
    passed = passed && same_bits(at(cut, from * some), expected.data() + (count - some), some);
    if (from == comm.rank()) continue;
    int const place = from < comm.rank() ? from : from - 1;
    passed = passed && same_bits(at(others, place * some), expected.data() + (count - some), some);
  }
  return passed;
}

template <Element T, class C>
bool moves_elements_of(C& comm, StreamOf<C> stream) {
  bool passed = true;
  for (std::int64_t const count : odd_counts) {
    // What depends on the count does so in bytes: all counts with one type, a few with the others.
    if (!std::is_same_v<T, float> && count % 16 != 1 && count != 0 && count != 4099) continue;
    passed = gathers_in_rank_order<T>(comm, stream, count) && passed;
    if constexpr (AllReduces<C, T, Max>) {
      passed = reduce_scatters<T, Max>(comm, stream, count) && passed;
      passed = all_reduces<T, Max>(comm, stream, count) && passed;
    }
    if constexpr (ReduceScatters<C, T>) {
      passed = reduce_scatters<T, Sum>(comm, stream, count) && passed;
      passed = all_reduces<T, Sum>(comm, stream, count) && passed;
    }
    passed = broadcasts<T>(comm, stream, count) && passed;
    passed = all_to_alls<T>(comm, stream, count) && passed;
    if constexpr (RealElement<T> && ReduceScatters<C, T>) {
      if (!TraitsOf<C>::scales_alone && comm.size() == 1) continue;
      passed = reduce_scatters<T, Sum>(comm, stream, count, 0.25f) && passed;
      passed = all_reduces<T, Sum>(comm, stream, count, 0.5f) && passed;
    }
  }
  return passed;
}

/// No rank passes the barrier before the last one, which takes its time, has arrived. All ranks of a host share a clock.
template <class C>
bool barrier_holds(C& comm, StreamOf<C> stream) {
  auto const now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  bool passed = true;
  for (int round = 0; round < 12; ++round) {
    Elements<C, std::int64_t> arrived(1);
    std::int64_t left = 0;
    Elements<C, std::int64_t> all(static_cast<std::size_t>(comm.size()));
    TraitsOf<C>::call_on(stream, [&, late = round % comm.size() == comm.rank()] {
      if (late) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      arrived[0] = now();
    });
    comm.enqueue(stream, Barrier{.label = label_of_tests});
    TraitsOf<C>::call_on(stream, [&] { left = now(); });
    comm.enqueue(stream, AllGather<std::int64_t>{.send = arrived.data(), .receive = all.data(), .count = 1});
    stream.synchronize();
    for (std::int64_t other : all) passed = passed && other <= left;
  }
  return passed;
}

template <class F>
bool refuses(F call) {
  try {
    call();
  } catch (UsageError const&) {
    return true;
  }
  return false;
}

/// Every rank's mistake is refused in the call, names this file, and leaves the communicator usable.
template <class C>
bool refuses_wrong_arguments(C& comm, StreamOf<C> stream) {
  Elements<C, float> memory(static_cast<std::size_t>(8 * comm.size() + 8));
  Elements<C, std::int64_t> integers(8);
  float* const p = memory.data();
  int const n = comm.size();
  int const r = comm.rank();
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  bool passed = true;
  auto const refused = [&](auto const& operation) {
    bool const ok = refuses([&] { comm.enqueue(stream, operation); });
    passed = passed && ok;
  };
  refused(AllGather<float>{.send = p, .receive = p + 4, .count = -1});
  refused(AllGather<float>{.send = nullptr, .receive = p, .count = 1});
  refused(AllGather<float>{.send = p, .receive = nullptr, .count = 1});
  refused(AllGather<float>{.send = p, .receive = p, .count = huge});
  refused(AllGather<float>{.send = p + r * 4 + 1, .receive = p, .count = 4});
  refused(ReduceScatter<float>{.send = p, .receive = p + r * 4 + 1, .count = 4});
  refused(ReduceScatter<float>{.send = p, .receive = nullptr, .count = 4});
  refused(AllReduce<float>{.send = p, .receive = p + 1, .count = 4});
  if constexpr (AllReduces<C, float, Max>) refused(AllReduce<float, Max>{.send = p, .receive = p, .count = 4, .factor = 0.5f});
  refused(AllReduce<std::int64_t, Max>{.send = integers.data(), .receive = integers.data(), .count = 4, .factor = 0.5f});
  refused(AllReduce<std::int64_t>{.send = integers.data(), .receive = integers.data(), .count = 4, .factor = 0.5f});
  refused(Broadcast<float>{.buffer = p, .count = 4, .root = -1});
  refused(Broadcast<float>{.buffer = p, .count = 4, .root = n});
  refused(Broadcast<float>{.buffer = nullptr, .count = 4});
  refused(AllToAll<float>{.send = p, .receive = p + 4 * n - 1, .count = 4});
  refused(AllToAll<float>{.send = p, .receive = p, .count = 4});
  refused(AllToAll<float>{.send = p, .receive = p + 4 * n, .count = 4, .stride = 3});
  refused(AllToAll<float>{.send = p, .receive = p + 4 * n, .count = 4, .stride = huge});
  try {
    comm.enqueue(stream, AllGather<float>{.send = p, .receive = p + 4, .count = -1});
  } catch (UsageError const& error) {
    std::string const text = error.what();
    passed = passed && error.rank() >= 0 && text.find("all-gather: the count is -1") != std::string::npos &&
             text.find("conformance.hpp") != std::string::npos;
  }
  comm.enqueue(stream, AllReduce<float>{.send = nullptr, .receive = nullptr, .count = 0});
  comm.enqueue(stream, Barrier{});
  stream.synchronize();
  return passed;
}

/// Halves, ordered backwards; a group of each rank alone; the same group again.
template <class C>
bool splits(C& comm, StreamOf<C> stream) {
  int const n = comm.size();
  int const r = comm.rank();
  auto backwards = comm.split(r % 2, -r);
  bool passed = backwards.size() == (n + 1 - r % 2) / 2 && backwards.rank() == backwards.size() - 1 - r / 2;
  Elements<C, std::int64_t> const own(1, r);
  Elements<C, std::int64_t> ranks(static_cast<std::size_t>(backwards.size()));
  backwards.enqueue(stream, AllGather<std::int64_t>{.send = own.data(), .receive = ranks.data(), .count = 1});
  stream.synchronize();
  for (int i = 0; i < backwards.size(); ++i)
    passed = passed && ranks[static_cast<std::size_t>(i)] == r % 2 + 2 * (backwards.size() - 1 - i);
  auto alone = comm.split(r);
  passed = passed && alone.size() == 1 && alone.rank() == 0;
  auto again = comm.split(0, r);
  passed = passed && again.size() == n && again.rank() == r && all_reduces<float, Sum>(again, stream, 100);
  try {
    static_cast<void>(comm.split(r == n - 1 ? -1 : 0));
    passed = false;
  } catch (UsageError const& error) {
    passed = passed && std::string(error.what()).find("negative") != std::string::npos;
  }
  return passed && all_reduces<float, Sum>(comm, stream, 100);
}

/// A moved communicator is the same rank; what it was moved from is in no group, says so, and can be assigned to where the type allows it.
template <class C>
bool moves(C& comm, StreamOf<C> stream) {
  auto from = comm.split(0, comm.rank());
  if constexpr (std::is_copy_constructible_v<decltype(from)>) {
    return true;  // The only rank, which stays what it is.
  } else {
    bool passed = true;
    auto to = std::move(from);
    auto const is_in_no_group = [&] {
      passed = passed && from.size() == 0 && from.rank() == -1;
      from.abort(nullptr);  // Nobody is concerned.
      auto const refuses = [&](auto const& call) {
        try {
          call();
          passed = false;
        } catch (UsageError const& error) {
          std::string const text = error.what();
          passed = passed && text.find("moved from") != std::string::npos && text.find("conformance.hpp") != std::string::npos;
        }
      };
      refuses([&] { from.enqueue(stream, Barrier{}); });
      refuses([&] { static_cast<void>(from.split(0)); });
    };
    is_in_no_group();
    if constexpr (std::is_move_assignable_v<decltype(from)>) {
      from = std::move(to);
      passed = passed && from.rank() == comm.rank() && all_reduces<float, Sum>(from, stream, 100);
      to = std::move(from);
      is_in_no_group();
    }
    return passed && to.rank() == comm.rank() && all_reduces<float, Sum>(to, stream, 100);
  }
}

/// Operations inside a group all happen.
template <class C>
bool groups(C& comm, StreamOf<C> stream) {
  Elements<C, float> const send(3, 1.0f);
  Elements<C, std::int64_t> const rank(3, comm.rank());
  Elements<C, float> first(3);
  Elements<C, std::int64_t> second(3);
  comm.group(stream, [&] {
    comm.enqueue(stream, AllReduce<float>{.send = send.data(), .receive = first.data(), .count = 3});
    comm.enqueue(stream, AllReduce<std::int64_t, Max>{.send = rank.data(), .receive = second.data(), .count = 3});
  });
  comm.group(stream, [] {});
  stream.synchronize();
  return first[2] == static_cast<float>(comm.size()) && second[2] == comm.size() - 1;
}

/// The model's own stream on this rank, or a new one of the communicator's device.
template <class Model, class C>
auto stream_of(bool worker) {
  if constexpr (requires { Model::stream(); }) {
    return Model::stream();
  } else {
    return TraitsOf<C>::make_stream(worker);
  }
}

/// Runs all of the above on every rank of a model, with collectives on the calling thread and on a worker. A model whose ranks are
/// processes says so by a member `one_rank_a_process`, one that does not add 16-bit elements by a member `no_16_bit_sums`; one whose
/// communicators must not outlive the stream has a static `stream()` that gives one on each rank.
template <class Model>
void conformance(int ranks) {
  for (bool const worker : {false, true}) {
    CAPTURE(worker);
    std::atomic<std::int64_t> checks = 0;
    Model::run(ranks, [&](auto& comm) {
      using C = std::remove_reference_t<decltype(comm)>;
      static_assert(check_communicator<C>());
      static_assert((ReduceScatters<C, bf16> && ReduceScatters<C, half>) || requires { Model::no_16_bit_sums; });
      auto const stream = stream_of<Model, C>(worker);
      bool const right_size = comm.size() == ranks && comm.rank() >= 0 && comm.rank() < ranks;
      CHECK(right_size);
      CHECK(moves_elements_of<float>(comm, stream));
      CHECK(moves_elements_of<double>(comm, stream));
      CHECK(moves_elements_of<bf16>(comm, stream));
      CHECK(moves_elements_of<half>(comm, stream));
      CHECK(moves_elements_of<std::int8_t>(comm, stream));
      CHECK(moves_elements_of<std::uint8_t>(comm, stream));
      CHECK(moves_elements_of<std::int32_t>(comm, stream));
      CHECK(moves_elements_of<std::uint32_t>(comm, stream));
      CHECK(moves_elements_of<std::int64_t>(comm, stream));
      CHECK(moves_elements_of<std::uint64_t>(comm, stream));
      CHECK(barrier_holds(comm, stream));
      CHECK(refuses_wrong_arguments(comm, stream));
      CHECK(groups(comm, stream));
      CHECK(splits(comm, stream));
      CHECK(moves(comm, stream));
      checks.fetch_add(1);
    });
    CHECK(checks.load() >= (requires { Model::one_rank_a_process; } ? 1 : ranks));
  }
}

}  // namespace zero::test
