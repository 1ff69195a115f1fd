// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Collectives of more than 2^31 elements and of more than 2^31 bytes, as they are: with no option that makes less count as much.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/core/element.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>

#include "support/large_buffers.hpp"

namespace zero::test {

/// One rank's collectives, for two ranks: more would need more memory. Every element of every result is compared.
template <class Group>
class LargeCounts {
public:
  explicit LargeCounts(Group& group) : group_(group), memory_(whole + 4096) {}

  void run() {
    Ordered ordered{Borrowed{group_}, host_memory(), {.staging_bytes = std::int64_t{64} << 20}};
    step("broadcast of 2^31 + 9 uint8", [&] { broadcast<std::uint8_t>(whole + 9); });
    step("all-gather of 2^30 + 7 uint8 a rank", [&] { all_gather<std::uint8_t>(whole / 2 + 7, false); });
    step("all-gather in place of 2^29 + 7 bf16 a rank", [&] { all_gather<bf16>(whole / 4 + 7, true); });
    step("all-to-all of 2^30 + 7 uint8 a pair", [&] { all_to_all<std::uint8_t>(whole / 2 + 7, 0, true); });
    step("all-to-all of 2^28 + 5 fp32 a pair, with a stride", [&] { all_to_all<float>(whole / 8 + 5, whole / 8 + 8, true); });
    step("all-to-all of 2^31 + 9 uint8 a pair, without own parts", [&] { all_to_all<std::uint8_t>(whole + 9, 0, false); });
    step("all-reduce of 2^31 + 9 uint8", [&] { all_reduce<std::uint8_t>(group_, whole + 9, 1); });
    step("all-reduce of 2^29 + 5 fp32, with a factor", [&] { all_reduce<float>(group_, whole / 4 + 5, 0.5f); });
    step("reduce-scatter of 2^30 + 7 uint8 a rank", [&] { reduce_scatter<std::uint8_t>(group_, whole / 2 + 7); });
    step("reduce-scatter of 2^28 + 3 fp32 a rank", [&] { reduce_scatter<float>(group_, whole / 8 + 3); });
    step("ordered all-reduce of 2^30 + 5 bf16", [&] { all_reduce<bf16>(ordered, whole / 2 + 5, 0.5f); });
    step("ordered reduce-scatter of 2^30 + 7 bf16 a rank", [&] { reduce_scatter<bf16>(ordered, whole / 2 + 7); });
  }

private:
  static constexpr std::int64_t whole = std::int64_t{1} << 31;

  template <class Body>
  void step(char const* name, Body const& body) {
    auto const start = std::chrono::steady_clock::now();
    try {
      body();
      memory_.check_guards();
    } catch (std::runtime_error const& error) {
      throw std::runtime_error(std::string(name) + ": " + error.what());
    }
    if (group_.rank() != 0) return;
    std::printf("%-50s %5.1f s\n", name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  }

  template <class On, class Operation>
  static void perform(On& group, Operation const& operation) {
    group.enqueue(HostStreamRef::calling_thread(), operation);
  }

  /// What a rank contributes.
  template <Element T>
  static RepeatedValues<T> values(int rank) {
    return RepeatedValues<T>(static_cast<std::uint64_t>(rank));
  }
  template <Element T>
  RepeatedValues<T> own_values() const {
    return values<T>(group_.rank());
  }
  template <Element T>
  RepeatedValues<T> sum() const {
    RepeatedValues<T> result = values<T>(0);
    for (int rank = 1; rank < group_.size(); ++rank) result.add(values<T>(rank));
    return result;
  }

  template <Element T>
  void broadcast(std::int64_t count) {
    int const root = group_.size() - 1;
    T* const buffer = memory_.take<T>(count);
    if (group_.rank() == root) own_values<T>().write(buffer, count);
    perform(group_, Broadcast<T>{.buffer = buffer, .count = count, .root = root});
    values<T>(root).expect(buffer, count);
  }

  template <Element T>
  void all_gather(std::int64_t count, bool in_place) {
    T* const all = memory_.take<T>(count * group_.size());
    T* const own = all + group_.rank() * count;
    if (in_place) {
      own_values<T>().write(own, count);
      perform(group_, AllGather<T>{.send = own, .receive = all, .count = count});
    } else {
      Mapping const sent = own_values<T>().read_only(count);
      perform(group_, AllGather<T>{.send = reinterpret_cast<T const*>(sent.data()), .receive = all, .count = count});
    }
    for (int rank = 0; rank < group_.size(); ++rank) values<T>(rank).expect(all + rank * count, count);
  }

  template <Element T>
  void all_to_all(std::int64_t count, std::int64_t stride, bool own_part) {
    std::int64_t const step = stride == 0 ? count : stride;
    Mapping const sent = own_values<T>().read_only((group_.size() - 1) * step + count);
    T* const received = memory_.take<T>(count * (own_part ? group_.size() : group_.size() - 1));
    AllToAll<T> const operation{
        .send = reinterpret_cast<T const*>(sent.data()), .receive = received, .count = count, .stride = stride, .own_part = own_part};
    perform(group_, operation);
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (own_part || rank != group_.rank())
        values<T>(rank).expect(received + operation.place(rank, group_.rank()), count, group_.rank() * step);
    }
  }

  template <Element T, class On>
  void all_reduce(On& group, std::int64_t count, float factor) {
    T* const buffer = memory_.take<T>(count);
    own_values<T>().write(buffer, count);
    perform(group, AllReduce<T>{.send = buffer, .receive = buffer, .count = count, .factor = factor});
    RepeatedValues<T> expected = sum<T>();
    if (factor != 1.0f) expected.multiply(factor);
    expected.expect(buffer, count);
  }

  template <Element T, class On>
  void reduce_scatter(On& group, std::int64_t count) {
    Mapping const sent = own_values<T>().read_only(count * group_.size());
    T* const received = memory_.take<T>(count);
    perform(group, ReduceScatter<T>{.send = reinterpret_cast<T const*>(sent.data()), .receive = received, .count = count});
    sum<T>().expect(received, count, group_.rank() * count);
  }

  Group& group_;
  GuardedMemory memory_;
};

}  // namespace zero::test
