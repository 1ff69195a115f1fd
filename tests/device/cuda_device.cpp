// SPDX-License-Identifier: Apache-2.0
/// @file
/// CUDA as a device over the stand-in runtime: what every device does, memory, and each call of CUDA made to fail.

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/streams.hpp>

#include "device/conformance.hpp"
#include "support/standin/standin_cuda.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaEvent;
using zero::CudaMemory;
using zero::CudaStream;
using zero::CudaStreamMemory;
using zero::CudaStreamRef;
using zero::Purpose;
using zero::standin::Live;

/// Two delayed streams; `Events` in each ring.
template <int Events>
struct StandIn {
  using Device = CudaDevice;
  static constexpr char const* name = Events == 1 ? "a ring of one event" : "two streams";

  explicit StandIn(std::uint64_t seed) {
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 200});
    for (auto& stream : streams_) stream.emplace(zero::CudaStreamOptions{.events = Events});
    memory_ = std::make_unique<CudaMemory>();
  }
  ~StandIn() {
    for (auto& stream : streams_) cudaStreamSynchronize(stream->native());
  }
  CudaStreamRef stream(std::size_t i) const { return *streams_[i]; }
  zero::MemoryResource& memory() const { return *memory_; }
  void finish() const {
    for (auto const& stream : streams_) stream->synchronize();
  }

private:
  std::array<std::optional<CudaStream>, 2> streams_;
  std::unique_ptr<CudaMemory> memory_;
};

using Plain = StandIn<64>;
using Narrow = StandIn<1>;

/// Enough for every function of the device, on two streams and two devices. @returns the values it computed.
std::vector<float> use_everything() {
  CudaStream const compute{{.device = 1, .events = 2}};
  CudaStream const other{{.device = 1, .events = 2}};
  CudaMemory memory{1};
  CudaStreamMemory ordered{other};
  zero::Buffer<float> result{CudaDevice::pinned_memory(), 8, Purpose::control};
  struct Wait {  // what owners of memory do before they give it back
    CudaStreamRef a, b;
    ~Wait() {
      for (CudaStreamRef stream : {a, b}) {
        try {
          stream.synchronize();
        } catch (zero::Error const&) {
        }
      }
    }
  };
  zero::Buffer<float> a{memory, 8, Purpose::parameters};
  zero::Buffer<float> b{ordered, 8, Purpose::gradients};
  zero::Buffer<std::int64_t> sum{memory, 1, Purpose::control};
  zero::Buffer<int> calls{memory, 1, Purpose::control};
  Wait const wait{compute, other};
  CudaDevice::check_memory(a.data());
  for (int i = 0; i < 4; ++i) {
    CudaDevice::fill(compute, a.data(), 8, static_cast<float>(i));
    CudaDevice::wait(other, CudaDevice::record(compute), zero::WaitId::user);
    CudaDevice::copy(other, b.data(), a.data(), 32);
    CudaDevice::wait(compute, CudaDevice::record(other), zero::WaitId::user);
  }
  CudaDevice::fill(compute, reinterpret_cast<std::byte*>(calls.data()), sizeof(int), std::byte{});
  CudaDevice::fill(compute, sum.data(), 1, 0);
  CudaDevice::accumulate(compute, 4, zero::test::AddIndex{sum.data()});
  CudaDevice::run(compute, zero::test::CountCall{calls.data()});
  CudaDevice::for_each(compute, 8, zero::test::SmallUpdate{0.5f, a.data(), b.data(), b.data()});
  CudaDevice::copy(compute, result.data(), a.data(), 32);
  CudaEvent const done = CudaDevice::record(compute);
  CudaDevice::synchronize(done);
  CudaDevice::synchronize(CudaStreamRef(compute));
  return {result.span().begin(), result.span().end()};
}

}  // namespace

ZERO_TEST_DEVICE(Plain, Narrow);

TEST_CASE("every_call_of_cuda_may_fail: a typed error that names the call, nothing lost, nothing hangs") {
  zero::standin::reset();
  std::vector<float> const expected = use_everything();
  std::int64_t const calls = zero::standin::calls();
  CHECK(calls > 60);
  int device = -1;
  cudaGetDevice(&device);
  CHECK(device == 0);
  CHECK(zero::standin::live() == Live{});
  for (bool const from_then_on : {false, true}) {
    int refused = 0;
    for (std::int64_t call = 1; call <= calls; ++call) {
      zero::standin::reset({.delay_seed = 3, .max_delay_us = 20});
      zero::standin::fail({.call = call, .from_then_on = from_then_on});
      try {
        std::vector<float> const values = use_everything();
        CHECK_MESSAGE(values == expected, call);  // a query, or what gives something back
      } catch (zero::DeviceError const& error) {
        ++refused;
        CHECK(error.code() == cudaErrorLaunchFailure);
        CHECK(std::string(error.what()).find("cudaErrorLaunchFailure (719") != std::string::npos);
        CHECK(error.where().line > 0);
      } catch (zero::MemoryError const& error) {
        ++refused;
        CHECK(std::string(error.what()).find("failed with cudaErrorLaunchFailure") != std::string::npos);
      }
      zero::standin::fail({});
      cudaSetDevice(0);  // what failed may have been the return to it
      CHECK_MESSAGE(zero::standin::live() == Live{}, call);
      CHECK(cudaGetLastError() == cudaSuccess);
    }
    CHECK(refused > calls / 3);
  }
  zero::standin::reset();
}

TEST_CASE("a_failed_call_fails_its_stream_and_says_where_it_was_made") {
  zero::standin::reset();
  CudaStream const stream;
  CudaStream const other;
  CudaMemory memory;
  zero::Buffer<float> x{memory, 4, Purpose::control};
  CudaEvent const before = CudaDevice::record(stream);
  CudaDevice::synchronize(before);
  zero::standin::fail({.call = 1, .function = "cudaMemcpyAsync", .error = cudaErrorInvalidValue});
  int const line = __LINE__ + 2;
  try {
    CudaDevice::copy(stream, x.data(), x.data() + 1, 4);
    CHECK(false);
  } catch (zero::DeviceError const& error) {
    CHECK(error.where().line == line);
    CHECK(std::string(error.what()).find("cudaMemcpyAsync failed with cudaErrorInvalidValue (1:") != std::string::npos);
  }
  std::int64_t const copies = zero::standin::calls("cudaMemcpyAsync");
  CHECK_THROWS_AS(CudaDevice::copy(stream, x.data(), x.data() + 1, 4), zero::DeviceError);
  CHECK(zero::standin::calls("cudaMemcpyAsync") == copies);
  CHECK_THROWS_AS(CudaDevice::synchronize(CudaDevice::record(stream)), zero::DeviceError);
  CudaDevice::synchronize(before);
  CudaDevice::wait(other, CudaDevice::record(stream), zero::WaitId::user);
  CHECK_THROWS_WITH_AS(CudaDevice::fill(other, x.data(), 4, 1.0f), doctest::Contains("cudaMemcpyAsync"), zero::DeviceError);
}

TEST_CASE("memory_that_a_device_cannot_use_is_refused") {
  zero::standin::reset();
  std::vector<float> heap(4);
  CHECK_THROWS_WITH_AS(CudaDevice::check_memory(heap.data()), doctest::Contains("the CUDA device cannot use it"), zero::UsageError);
  zero::standin::reset({.pageable_access = true});
  CudaDevice::check_memory(heap.data());
}

TEST_CASE("memory_resources_give_aligned_blocks_and_typed_errors") {
  zero::standin::reset();
  CudaStream const stream{{.device = 1}};
  CudaMemory plain{1};
  CudaStreamMemory ordered{stream};
  CHECK(plain.device() == 1);
  for (zero::MemoryResource* memory : std::initializer_list<zero::MemoryResource*>{&plain, &ordered, &CudaDevice::pinned_memory()}) {
    CHECK(memory->allocate(0, Purpose::control) == nullptr);
    memory->deallocate(nullptr, 0, Purpose::control);
    void* const block = memory->allocate(100, Purpose::control);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % zero::memory_alignment == 0);
    memory->deallocate(block, 100, Purpose::control);
    CHECK_THROWS_AS(static_cast<void>(memory->allocate(-1, Purpose::control)), zero::MemoryError);
    for (char const* function : {"cudaMalloc", "cudaMallocAsync", "cudaHostAlloc"}) {
      zero::standin::fail({.call = 1, .function = function, .error = cudaErrorMemoryAllocation});
      try {
        memory->deallocate(memory->allocate(64, Purpose::gathered), 64, Purpose::gathered);
      } catch (zero::MemoryError const& error) {
        CHECK(error.bytes() == 64);
        CHECK(std::string(error.what()) == std::string("zero: cannot allocate 64 bytes for gathered parameters: ") + function +
                                               " failed with cudaErrorMemoryAllocation (2: text of the stand-in CUDA runtime)");
      }
    }
    zero::standin::fail({});
  }
  CHECK(zero::standin::live().blocks == 0);
  CHECK_THROWS_AS(CudaMemory{7}, zero::UsageError);
  zero::standin::reset({.driver_version = 0});
  CHECK_THROWS_WITH_AS(CudaMemory{}, doctest::Contains("there is no CUDA driver"), zero::DeviceError);
}

TEST_CASE("the_steady_state_makes_no_calls_but_those_it_needs") {
  zero::standin::reset();
  CudaStream const a;
  CudaStream const b;
  CudaMemory memory;
  zero::Buffer<float> x{memory, 64, Purpose::control};
  auto const loop = [&] {
    CudaDevice::fill(a, x.data(), 64, 1.0f);
    CudaDevice::wait(b, CudaDevice::record(a), zero::WaitId::user);
    CudaDevice::copy(b, x.data(), x.data() + 32, 128);
    CudaDevice::wait(a, CudaDevice::record(b), zero::WaitId::user);
  };
  for (int i = 0; i < 200; ++i) loop();
  Live const live = zero::standin::live();
  std::int64_t const synchronisations = zero::standin::calls("cudaStreamSynchronize") + zero::standin::calls("cudaEventSynchronize");
  for (int i = 0; i < 200; ++i) loop();
  CHECK(zero::standin::live() == live);
  CHECK(zero::standin::calls("cudaStreamSynchronize") + zero::standin::calls("cudaEventSynchronize") == synchronisations);
  CHECK(zero::standin::calls("cudaSetDevice") == 0);
  a.synchronize();
  b.synchronize();
}
