// SPDX-License-Identifier: Apache-2.0
/// @file
/// Training of several ranks over NCCL and CUDA streams, with the stand-ins of both: the bits and bytes of the thread transport, with gradients
/// whose sums are exact in any order, and with any gradients where `Ordered` forms the sums.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_memory.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/comm/threads.hpp>
#include <zero/core/hash.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/device_training.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaMemory;
using zero::CudaStream;
using zero::HostDevice;
using zero::HostStream;
using zero::MemoryResource;
using zero::NcclCommunicator;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::Streams;
using zero::Subject;
using zero::ThreadCommunicator;
using zero::Unit;
using zero::UnitView;

/// gradient[i] += a number made of the seed and i: an integer from 0 to 3, or any.
template <class Gradient>
struct AddNumbers {
  Gradient* gradient;
  std::uint64_t seed;
  bool integers;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    std::uint64_t const bits = zero::mixed_bits(seed + zero::mixed_bits(static_cast<std::uint64_t>(i)));
    float const number = integers ? static_cast<float>(bits >> 62) : static_cast<float>(bits >> 40) * 0x1p-20f - 7.0f;
    gradient[i] = zero::element_cast<Gradient>(static_cast<float>(static_cast<zero::compute_t<Gradient>>(gradient[i])) + number);
  }
};

/// What a rank has at the end.
struct Result {
  std::vector<unsigned char> parameters;
  std::vector<double> norms;
  std::int64_t received[zero::subject_count] = {};
  std::int64_t calls[zero::subject_count] = {};
  friend bool operator==(Result const&, Result const&) = default;
};

/// Three steps of two micro-batches. All transports run this text.
template <class S, class P, class Group>
Result train(
    Group& group, Streams<typename Group::Device> streams, MemoryResource& memory, zero::Traffic& traffic, bool integers,
    std::function<void(int)> const& after_step = [](int) {}) {
  using D = typename Group::Device;
  using Parameter = typename P::parameter;
  using Gradient = typename P::gradient;
  ParameterLayout const layout = zero::test::training_layout();
  auto parameters = zero::shard_parameters<S, P>(layout, group, streams, memory);
  zero::ShardedOptimizer<zero::SGD, S> optimizer{parameters, {.learning_rate = 0.125}};
  parameters.initialize(3, [](ParameterId) { return zero::InitialValue::normal(0, 1); });
  Result result;
  for (int step = 0; step < 3; ++step) {
    for (int m = 0; m < 2; ++m) {
      auto pass = parameters.training_pass({.last = m == 1});
      for (Unit unit : layout.units()) static_cast<void>(pass.gather(unit));
      for (Unit unit : layout.units().reversed()) {
        auto const weights = pass.gather(unit);  // As a backward needs them.
        static_cast<void>(weights);
        auto gradients = pass.gradients(unit);
        UnitView<Gradient> const into = gradients;
        auto const ids = layout.parameters(unit);
        for (std::size_t k = 0; k < ids.size(); ++k) {
          if (into[k] == nullptr) continue;
          std::uint64_t const seed = zero::Hasher{}
                                         .add(static_cast<std::uint64_t>(100 * step + 10 * m + group.rank()))
                                         .add(static_cast<std::uint64_t>(to_index(ids[k])))
                                         .value();
          D::for_each(streams.compute, layout.elements(ids[k]), AddNumbers<Gradient>{into[k], seed, integers});
        }
        gradients.hand_over();
      }
      pass.finish();
    }
    result.norms.push_back(optimizer.step(parameters, {.max_norm = 50.0, .micro_batches = 2}).wait().norm);
    after_step(step);
  }
  auto const whole = parameters.gather_all();
  for (Unit unit : layout.units()) {
    UnitView<Parameter const> const view = whole[unit];
    for (std::int32_t k = 0; k < view.size(); ++k) {
      zero::Buffer<Parameter> host{D::pinned_memory(), view.elements(k), zero::Purpose::control};
      D::copy(streams.compute, host.data(), view[k], host.bytes());
      D::synchronize(streams.compute);
      auto const* const bytes = reinterpret_cast<unsigned char const*>(host.data());
      result.parameters.insert(result.parameters.end(), bytes, bytes + host.bytes());
    }
  }
  for (int s = 0; s < zero::subject_count; ++s) {
    result.received[s] = traffic.received_bytes(static_cast<Subject>(s));
    result.calls[s] = traffic.calls(static_cast<Subject>(s));
  }
  return result;
}

template <class S, class P>
std::vector<Result> over_threads(int ranks, bool integers) {
  std::vector<Result> results(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
    HostStream const stream;
    zero::Traffic traffic;
    zero::Counting counting{zero::Borrowed{comm}, traffic};
    results[static_cast<std::size_t>(comm.rank())] = train<S, P>(counting, {stream, stream}, zero::host_memory(), traffic, integers);
  });
  return results;
}

/// `adapt(communicator, memory)` is what the training uses.
template <class S, class P, class Adapt>
std::vector<Result> over_nccl(int ranks, bool integers, std::uint64_t seed, Adapt const& adapt) {
  zero::test::need_devices(ranks, seed);
  std::vector<Result> results(static_cast<std::size_t>(ranks));
  zero::test::run_nccl(ranks, [&](NcclCommunicator& comm) {
    CudaStream const compute;
    CudaStream const communication;
    CudaMemory memory;
    zero::Traffic traffic;
    auto adapted = adapt(comm, memory);
    zero::Counting counting{zero::Borrowed{adapted}, traffic};
    results[static_cast<std::size_t>(comm.rank())] = train<S, P>(counting, {compute, communication}, memory, traffic, integers);
    comm.finalize();  // Nobody frees memory while others still work: cudaFree waits for all streams of the process.
  });
  CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
  return results;
}

template <class S, class P>
void check_integers() {
  int const ranks = zero::test::ranks();
  auto const expected = over_threads<S, P>(ranks, true);
  CHECK(expected[0].norms[0] > 1.0);
  for (std::uint64_t const seed : {0, 1, 2}) {
    CAPTURE(seed);
    CHECK((over_nccl<S, P>(ranks, true, seed, [](NcclCommunicator& comm, MemoryResource&) { return zero::Borrowed{comm}; }) == expected));
  }
}

template <class S, class P>
void check_ordered() {
  int const ranks = zero::test::ranks();
  auto const expected = over_threads<S, P>(ranks, false);
  // Else these gradients would prove nothing: two addends have only one order.
  auto const plain = over_nccl<S, P>(ranks, false, 0, [](NcclCommunicator& comm, MemoryResource&) { return zero::Borrowed{comm}; });
  CHECK((plain == expected) == (ranks <= 2));
  for (std::uint64_t const seed : {0, 1}) {
    CAPTURE(seed);
    CHECK((over_nccl<S, P>(ranks, false, seed, [](NcclCommunicator& comm, MemoryResource& memory) {
             return zero::Ordered{zero::Borrowed{comm}, memory};
           }) == expected));
  }
}

/// Training in memory from NCCL's allocator, with and without windows: the bits of plain memory.
template <class S, class P>
void check_nccl_memory() {
  int const ranks = zero::test::ranks();
  auto const expected = over_nccl<S, P>(ranks, false, 0, [](NcclCommunicator& comm, MemoryResource&) { return zero::Borrowed{comm}; });
  for (bool const windows : {false, true}) {
    CAPTURE(windows);
    zero::test::need_devices(ranks, 3);
    std::vector<Result> results(static_cast<std::size_t>(ranks));
    zero::test::run_nccl(ranks, [&](NcclCommunicator& comm) {
      CudaStream const compute;
      CudaStream const communication;
      zero::NcclMemory memory(comm, {.windows = windows});
      zero::Traffic traffic;
      zero::Counting counting{zero::Borrowed{comm}, traffic};
      std::vector<std::int64_t> registered;  // after each step
      results[static_cast<std::size_t>(comm.rank())] = train<S, P>(counting, {compute, communication}, memory, traffic, false, [&](int) {
        registered.push_back(zero::standin::nccl_calls("ncclCommWindowRegister", comm.rank()));
      });
      // What passes need is allocated in the first one; in later steps nobody waits for peers to register.
      CHECK((registered[0] > 0) == windows);
      CHECK(registered == std::vector<std::int64_t>(3, registered[0]));
      CHECK(memory.windows() == 0);
      comm.finalize();
    });
    CHECK((results == expected));
    CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
  }
}

using Fp32 = zero::Precision<float>;
using Bf16 = zero::Precision<zero::bf16>;
using Half = zero::Precision<zero::half>;

}  // namespace

TEST_CASE("integer gradients over NCCL give the bits and bytes of the threads") {
  SUBCASE("Stage0, fp32") { check_integers<zero::Stage0, Fp32>(); }
  SUBCASE("Stage1, bf16") { check_integers<zero::Stage1, Bf16>(); }
  SUBCASE("Stage2, bf16") { check_integers<zero::Stage2, Bf16>(); }
  SUBCASE("Stage3, fp32") { check_integers<zero::Stage3, Fp32>(); }
}

TEST_CASE("field case 79: training in half over NCCL, whose sums are multiplied before they are rounded") {
  SUBCASE("Stage1") { check_integers<zero::Stage1, Half>(); }
  SUBCASE("Stage3") { check_integers<zero::Stage3, Half>(); }
}

TEST_CASE("field case 112: any gradients over NCCL give the bits of the threads where Ordered forms the sums") {
  SUBCASE("Stage1, fp32") { check_ordered<zero::Stage1, Fp32>(); }
  SUBCASE("Stage3, bf16") { check_ordered<zero::Stage3, Bf16>(); }
}

TEST_CASE(
    "field case 115: memory from NCCL, whose windows are registered in the first step at the latest, gives the bits of plain memory") {
  SUBCASE("Stage1, bf16") { check_nccl_memory<zero::Stage1, Bf16>(); }
  SUBCASE("Stage3, fp32") { check_nccl_memory<zero::Stage3, Fp32>(); }
}
