// SPDX-License-Identifier: Apache-2.0
/// @file
/// `wrapper_cost <name> raw|zero|nothing`: calls a function of CUDA or NCCL, or what the library makes of it, so often as `calls`, inside the
/// function `measured`. bench/wrapper_cost/run counts the instructions in it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include <zero/comm/nccl.hpp>
#include <zero/device/cuda_device.hpp>

#include "wrapper_cost/measure.hpp"

namespace {

float memory[16];

/// What is called, on objects that are made once, and with what: nothing of it is known when this is compiled.
struct Objects {
  float* values = memory;
  std::int64_t count = 4;
  zero::NcclCommunicator comm{ncclUniqueId{}, {.rank = 0, .ranks = 2, .device = 0}};
  zero::CudaStream stream{{.events = 64}};
  zero::CudaStreamRef ref = stream;
  zero::CudaStream other{{.events = 64}};
  zero::CudaEvent event = zero::CudaDevice::record(other);
  cudaEvent_t raw_event = nullptr;
};

constexpr bench::Case<Objects> cases[] = {
    {"copy", [](Objects& o) { cudaMemcpyAsync(o.values, o.values + 8, 16, cudaMemcpyDefault, o.stream.native()); },
     [](Objects& o) { zero::CudaDevice::copy(o.ref, o.values, o.values + 8, 16); }},
    {"record", [](Objects& o) { cudaEventRecord(o.raw_event, o.stream.native()); },
     [](Objects& o) { static_cast<void>(zero::CudaDevice::record(o.ref)); }},
    {"wait", [](Objects& o) { cudaStreamWaitEvent(o.stream.native(), o.raw_event, 0); },
     [](Objects& o) { zero::CudaDevice::wait(o.ref, o.event, zero::WaitId::scratch_after_reduce); }},
    {"all-gather",
     [](Objects& o) {
       ncclAllGather(o.values, o.values, static_cast<std::size_t>(o.count), ncclFloat32, o.comm.native(), o.stream.native());
     },
     [](Objects& o) { o.comm.enqueue(o.ref, zero::AllGather<float>{.send = o.values, .receive = o.values, .count = o.count}); }},
    {"reduce-scatter",
     [](Objects& o) {
       ncclReduceScatter(o.values, o.values, static_cast<std::size_t>(o.count), ncclFloat32, ncclSum, o.comm.native(), o.stream.native());
     },
     [](Objects& o) { o.comm.enqueue(o.ref, zero::ReduceScatter<float>{.send = o.values, .receive = o.values, .count = o.count}); }},
    {"all-reduce",
     [](Objects& o) {
       ncclAllReduce(o.values, o.values, static_cast<std::size_t>(o.count), ncclFloat32, ncclSum, o.comm.native(), o.stream.native());
     },
     [](Objects& o) { o.comm.enqueue(o.ref, zero::AllReduce<float>{.send = o.values, .receive = o.values, .count = o.count}); }},
};

}  // namespace

int main(int argc, char** argv) {
  // What is remembered for the watchdog has its room after the first calls, and the watchdog has looked.
  return bench::measure(argc, argv, cases, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
}
