// SPDX-License-Identifier: Apache-2.0
/// @file
/// `wrapper_cost <name> raw|zero|nothing`: calls a function of CUDA or NCCL, or what the library makes of it, so often as `calls`, inside the
/// function `measured`. bench/wrapper_cost/run counts the instructions in it.

#include <chrono>
#include <cstdint>
#include <thread>

#include <zero/comm/nccl.hpp>
#include <zero/device/cuda_device.hpp>

#include "wrapper_cost/measure.hpp"

namespace {

constexpr std::int64_t count = 4;
float memory[4 * count];

/// What is called, on objects that are made once.
struct Objects {
  zero::NcclCommunicator comm{ncclUniqueId{}, {.rank = 0, .ranks = 2, .device = 0}};
  zero::CudaStream stream{{.events = 64}};
  zero::CudaStreamRef ref = stream;
  zero::CudaStream other{{.events = 64}};
  zero::CudaEvent event = zero::CudaDevice::record(other);
  cudaEvent_t raw_event = nullptr;
};

constexpr bench::Case<Objects> cases[] = {
    {"copy", [](Objects& o) { cudaMemcpyAsync(memory, memory + 2 * count, 16, cudaMemcpyDefault, o.stream.native()); },
     [](Objects& o) { zero::CudaDevice::copy(o.ref, memory, memory + 2 * count, 16); }},
    {"record", [](Objects& o) { cudaEventRecord(o.raw_event, o.stream.native()); },
     [](Objects& o) { static_cast<void>(zero::CudaDevice::record(o.ref)); }},
    {"wait", [](Objects& o) { cudaStreamWaitEvent(o.stream.native(), o.raw_event, 0); },
     [](Objects& o) { zero::CudaDevice::wait(o.ref, o.event, zero::WaitId::scratch_after_reduce); }},
    {"all-gather", [](Objects& o) { ncclAllGather(memory, memory, count, ncclFloat32, o.comm.native(), o.stream.native()); },
     [](Objects& o) { o.comm.enqueue(o.ref, zero::AllGather<float>{.send = memory, .receive = memory, .count = count}); }},
    {"reduce-scatter",
     [](Objects& o) { ncclReduceScatter(memory, memory, count, ncclFloat32, ncclSum, o.comm.native(), o.stream.native()); },
     [](Objects& o) { o.comm.enqueue(o.ref, zero::ReduceScatter<float>{.send = memory, .receive = memory, .count = count}); }},
    {"all-reduce", [](Objects& o) { ncclAllReduce(memory, memory, count, ncclFloat32, ncclSum, o.comm.native(), o.stream.native()); },
     [](Objects& o) { o.comm.enqueue(o.ref, zero::AllReduce<float>{.send = memory, .receive = memory, .count = count}); }},
};

}  // namespace

int main(int argc, char** argv) {
  // What is remembered for the watchdog has its room after the first calls, and the watchdog has looked.
  return bench::measure(argc, argv, cases, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
}
