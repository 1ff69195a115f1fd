// SPDX-License-Identifier: Apache-2.0
/// @file
/// Host time to enqueue, in turns in one run: calls of CUDA and of NCCL against what the library makes of them. Checks the results. NCCL's need
/// two ranks: threads with a GPU each where there are two, or processes that were started with torchrun's variables, see
/// tests/gpu/ranks_on_one_gpu.sh; then CUDA's calls are left out.
///
/// `bench_wrapper_time [rounds = 101]`, `bench_wrapper_time --nccl-version`: prints that of the headers, 0 without NCCL.

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/memory.hpp>

#if defined(ZERO_HAS_NCCL)
#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_start.hpp>
#include <zero/comm/run_ranks.hpp>
#endif

#include "compare.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaStream;
using zero::CudaStreamRef;

constexpr int calls = 50;  ///< Before the host waits: fewer than fit into CUDA's and NCCL's queues.

std::atomic<bool> right = true;
void check(bool passed) {
  if (!passed) right = false;
}

/// How long the host is in one call of many [seconds]; what they enqueue is done before and afterwards.
template <class Call>
double seconds(CudaStreamRef stream, Call const& call) {
  stream.synchronize();
  double const took = bench::wall_seconds([&] {
    for (int i = 0; i < calls; ++i) call();
  });
  stream.synchronize();
  return took / calls;
}

/// Work on a stream that is not done before it is told.
class Held {
public:
  explicit Held(CudaStreamRef stream) : stream_(stream) {
    check(cudaLaunchHostFunc(
              stream.native(),
              [](void* held) {
                while (!static_cast<std::atomic<bool>*>(held)->load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
              },
              &go_) == cudaSuccess);
  }
  ~Held() {
    go_ = true;
    if (cudaStreamSynchronize(stream_.native()) != cudaSuccess) right = false;
  }

private:
  CudaStreamRef stream_;
  std::atomic<bool> go_ = false;
};

void compare_cuda(int rounds) {
  constexpr std::int64_t n = 256;
  CudaStream const stream;
  CudaStream const other;
  zero::CudaMemory memory;
  zero::Buffer<float> from{memory, n, zero::Purpose::staging}, to{memory, n, zero::Purpose::staging};
  std::vector<float> const values(n, 3.0f);
  std::vector<float> copied(n);
  CudaDevice::copy(stream, from.data(), values.data(), from.bytes());
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  auto const row = [&](char const* name, auto const& raw, auto const& zero) {
    bench::print(name, bench::compare(
                           rounds, [&] { return seconds(stream, raw); }, [&] { return seconds(stream, zero); }));
  };

  row(
      "cudaMemcpyAsync of 1 KiB",
      [&] { check(cudaMemcpyAsync(to.data(), from.data(), n * sizeof(float), cudaMemcpyDefault, stream.native()) == cudaSuccess); },
      [&] { CudaDevice::copy(stream, to.data(), from.data(), to.bytes()); });
  CudaDevice::fill(stream, reinterpret_cast<std::byte*>(to.data()), to.bytes(), std::byte{0xff});
  CudaDevice::copy(stream, to.data(), from.data(), to.bytes());
  CudaDevice::copy(stream, copied.data(), to.data(), to.bytes());
  CudaDevice::synchronize(stream);
  check(copied == values);

  row(
      "cudaEventRecord", [&] { check(cudaEventRecord(event, stream.native()) == cudaSuccess); },
      [&] { static_cast<void>(CudaDevice::record(stream)); });

  // For an event that is not complete: a wait for one that is known to be is none.
  auto const waiting = [&](auto const& call) {
    return [&] {
      Held const held(other);
      zero::CudaEvent const ours = CudaDevice::record(other);
      check(cudaEventRecord(event, other.native()) == cudaSuccess);
      return bench::wall_seconds([&] {
               for (int i = 0; i < calls; ++i) call(ours);
             }) /
             calls;
    };
  };
  bench::print(
      "cudaStreamWaitEvent",
      bench::compare(rounds, waiting([&](zero::CudaEvent) { check(cudaStreamWaitEvent(stream.native(), event, 0) == cudaSuccess); }),
                     waiting([&](zero::CudaEvent ours) { CudaDevice::wait(stream, ours, zero::WaitId::user); })));
  CudaDevice::synchronize(stream);
  check(cudaEventDestroy(event) == cudaSuccess);
}

#if defined(ZERO_HAS_NCCL)
/// By every rank; rank 0 says what it measured.
void compare_nccl(zero::NcclCommunicator& comm, int rounds) {
  constexpr std::int64_t n = 1024;
  CudaStream const stream;
  zero::CudaMemory memory;
  zero::Buffer<float> from{memory, n * comm.size(), zero::Purpose::staging}, to{memory, n * comm.size(), zero::Purpose::staging};
  std::vector<float> const values(static_cast<std::size_t>(from.size()), 1.0f);
  std::vector<float> result(values.size());
  CudaDevice::copy(stream, from.data(), values.data(), from.bytes());
  // The communicator does not block: NCCL is asked until it has enqueued the operation.
  auto const finish = [&](ncclResult_t code) {
    while (code == ncclInProgress && ncclCommGetAsyncError(comm.native(), &code) == ncclSuccess) {
    }
    check(code == ncclSuccess);
  };
  auto const row = [&](char const* name, float expected, std::int64_t size, auto const& raw, auto const& operation) {
    bench::Comparison const comparison = bench::compare(
        rounds, [&] { return seconds(stream, [&] { finish(raw()); }); },
        [&] { return seconds(stream, [&] { comm.enqueue(stream, operation); }); });
    if (comm.rank() == 0) bench::print(name, comparison);
    CudaDevice::fill(stream, reinterpret_cast<std::byte*>(to.data()), to.bytes(), std::byte{0xff});
    comm.enqueue(stream, operation);
    CudaDevice::copy(stream, result.data(), to.data(), to.bytes());
    CudaDevice::synchronize(stream);
    for (std::int64_t i = 0; i < size; ++i) check(result[static_cast<std::size_t>(i)] == expected);
  };
  auto const ranks = static_cast<float>(comm.size());
  row(
      "ncclAllGather of 4 KiB a rank", 1, n * comm.size(),
      [&] { return ncclAllGather(from.data(), to.data(), n, ncclFloat32, comm.native(), stream.native()); },
      zero::AllGather<float>{.send = from.data(), .receive = to.data(), .count = n});
  row(
      "ncclReduceScatter of 4 KiB a rank", ranks, n,
      [&] { return ncclReduceScatter(from.data(), to.data(), n, ncclFloat32, ncclSum, comm.native(), stream.native()); },
      zero::ReduceScatter<float>{.send = from.data(), .receive = to.data(), .count = n});
  row(
      "ncclAllReduce of 4 KiB", ranks, n,
      [&] { return ncclAllReduce(from.data(), to.data(), n, ncclFloat32, ncclSum, comm.native(), stream.native()); },
      zero::AllReduce<float>{.send = from.data(), .receive = to.data(), .count = n});
}
#endif

int run(int rounds) {
  int devices = 0;
  if (cudaError_t const error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    std::printf("SKIPPED: no CUDA device here: %s\n", cudaGetErrorString(error));
    return 77;
  }
#if defined(ZERO_HAS_NCCL)
  if (std::getenv("WORLD_SIZE") != nullptr) {
    try {
      zero::NcclCommunicator comm = zero::nccl_from_environment({.deadline_ms = 120'000});
      if (comm.rank() == 0) bench::print_head();
      compare_nccl(comm, rounds);
      comm.finalize();
    } catch (zero::NcclError const& error) {
      // NCCL's answer where two ranks have one GPU.
      if (error.result() != ncclInvalidUsage) throw;
      std::printf("SKIPPED: this NCCL takes no two ranks on one GPU: %s\n", error.what());
      return 77;
    }
    return right ? 0 : 1;
  }
#endif
  bench::print_head();
  compare_cuda(rounds);
#if defined(ZERO_HAS_NCCL)
  if (devices > 1) {
    zero::run_ranks(2, [&](zero::ThreadCommunicator& threads) {
      zero::detail::check_cuda("cudaSetDevice", cudaSetDevice(threads.rank()), zero::SourceLocation::current());
      zero::NcclCommunicator comm = zero::nccl_over(threads);
      compare_nccl(comm, rounds);
    });
  }
#endif
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--nccl-version") {
#if defined(ZERO_HAS_NCCL)
    std::printf("%d.%d.%d\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
#else
    std::puts("0");
#endif
    return 0;
  }
  try {
    int const status = run(argc > 1 ? std::atoi(argv[1]) : 101);
    if (status != 77) std::puts(status == 0 ? "results right" : "RESULTS WRONG");
    return status;
  } catch (zero::Error const& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
