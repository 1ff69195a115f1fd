// SPDX-License-Identifier: Apache-2.0
/// @file
/// `Ordered` over NCCL, with the stand-ins of it and of CUDA: what every communicator must do, and the sums of the threads to the bit.

#include <zero/comm/ordered.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/counting.hpp>
#include <zero/core/hash.hpp>

#include "comm/conformance.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::AllReduce;
using zero::Borrowed;
using zero::CudaStream;
using zero::NcclCommunicator;
using zero::Ordered;
using zero::Purpose;
using zero::ReduceScatter;
using zero::ThreadCommunicator;
using zero::test::Elements;
using zero::test::run_nccl;

/// Groups come and go in these tests while peers work: cudaFree would wait for their streams.
class PooledMemory final : public zero::MemoryResource {
public:
  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose) override {
    return bytes > 0 ? zero::test::PinnedPool::take(static_cast<std::size_t>(bytes)) : nullptr;
  }
  void deallocate(void* block, std::int64_t bytes, Purpose) noexcept override {
    if (block != nullptr) zero::test::PinnedPool::give(block, static_cast<std::size_t>(bytes));
  }
};

/// The stream of a rank, which must exist as long as what adds on it.
class StreamOfRank {
public:
  StreamOfRank() { current = &stream_; }
  [[nodiscard]] static zero::CudaStreamRef stream() { return *current; }

private:
  static inline thread_local CudaStream const* current = nullptr;
  CudaStream stream_;
};

/// @tparam seed  of the delays of streams; with less staging memory most reductions are done in parts
template <std::uint64_t seed, std::int64_t staging_bytes>
struct OrderedNccl {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::test::need_devices(ranks, seed);
    run_nccl(ranks, [&](NcclCommunicator& comm) {
      PooledMemory memory;
      StreamOfRank const stream;
      Ordered ordered{Borrowed{comm}, memory, {.staging_bytes = staging_bytes}};
      body(ordered);
    });
  }
  [[nodiscard]] static zero::CudaStreamRef stream() { return StreamOfRank::stream(); }
};

/// What a split gives: all ranks, backwards.
struct SplitOrderedNccl {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::test::need_devices(ranks);
    run_nccl(ranks, [&](NcclCommunicator& comm) {
      PooledMemory memory;
      StreamOfRank const stream;
      Ordered ordered{Borrowed{comm}, memory, {.staging_bytes = 3000}};
      auto child = ordered.split(0, -comm.rank());
      CHECK(child.rank() == comm.size() - 1 - comm.rank());
      body(child);
    });
  }
  [[nodiscard]] static zero::CudaStreamRef stream() { return StreamOfRank::stream(); }
};

static_assert(zero::check_communicator<Ordered<NcclCommunicator>>());
static_assert(zero::Communicator<zero::Counting<Ordered<Borrowed<NcclCommunicator>>>>);
static_assert(zero::ReduceScatters<Ordered<NcclCommunicator>, zero::bf16>);
static_assert(zero::AllReduces<Ordered<NcclCommunicator>, float, zero::Max>, "the largest of real numbers is found here, NaN included");

/// Numbers whose sums depend on the order, and what the group makes of them: first the sums of all, then this rank's part.
template <class T, class C>
std::vector<T> sums_over(C& comm, zero::StreamOf<C> stream, std::int64_t count, float factor) {
  std::int64_t const n = comm.size();
  Elements<C, T> send(static_cast<std::size_t>(n * count));
  for (std::size_t i = 0; i < send.size(); ++i) {
    std::uint64_t const bits = zero::mixed_bits(static_cast<std::uint64_t>(comm.rank()) * 1'000'003u + i);
    send[i] = zero::element_cast<T>(std::ldexp(static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f, static_cast<int>(bits % 12)));
  }
  Elements<C, T> all(send.size());
  Elements<C, T> part(static_cast<std::size_t>(count));
  comm.enqueue(stream, AllReduce<T>{.send = send.data(), .receive = all.data(), .count = n * count, .factor = factor});
  comm.enqueue(stream, ReduceScatter<T>{.send = send.data(), .receive = part.data(), .count = count, .factor = factor});
  stream.synchronize();
  std::vector<T> result(all.begin(), all.end());
  result.insert(result.end(), part.begin(), part.end());
  return result;
}

template <class T>
void check_sums(std::int64_t count, float factor) {
  int const ranks = zero::test::ranks();
  std::vector<std::vector<T>> expected(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
    expected[static_cast<std::size_t>(threads.rank())] = sums_over<T>(threads, zero::HostStreamRef::calling_thread(), count, factor);
  });
  for (std::int64_t const staging : {std::int64_t{0}, std::int64_t{1000}, std::int64_t{1} << 20}) {
    zero::test::need_devices(ranks, static_cast<std::uint64_t>(staging));
    run_nccl(ranks, [&](NcclCommunicator& comm) {
      PooledMemory memory;
      CudaStream const stream;
      Ordered ordered{Borrowed{comm}, memory, {.staging_bytes = staging}};
      auto const sums = sums_over<T>(ordered, stream, count, factor);
      auto const& of_threads = expected[static_cast<std::size_t>(comm.rank())];
      INFO(count, " elements, factor ", factor, ", staging ", staging, ", rank ", comm.rank());
      CHECK(zero::test::same_bits(sums.data(), of_threads.data(), static_cast<std::int64_t>(of_threads.size())));
    });
  }
}

}  // namespace

TEST_CASE("ordered NCCL conforms") { zero::test::conformance<OrderedNccl<0, 1 << 20>>(zero::test::ranks()); }
TEST_CASE("ordered NCCL conforms with little staging memory and late streams") {
  zero::test::conformance<OrderedNccl<9, 3000>>(zero::test::ranks());
}
TEST_CASE("a group split from ordered NCCL conforms") { zero::test::conformance<SplitOrderedNccl>(zero::test::ranks()); }

TEST_CASE("field cases 51, 112, 113: sums over NCCL have the bits of the threads, whatever is staged at a time") {
  for (std::int64_t const count : {1, 7, 64, 333, 5000}) {
    check_sums<float>(count, 1.0f);
    check_sums<zero::bf16>(count, 1.0f);
    check_sums<zero::half>(count, 1.0f / 3);
  }
}
