// SPDX-License-Identifier: Apache-2.0
/// @file
/// `wrapper_cost_mpi <name> raw|zero|nothing`: the same as main.cpp for MPI. Raw is what has to be called to start a collective and to see that it
/// is done: one nonblocking call and one MPI_Test; for an all-to-all a copy of the own part, a message each way, and one MPI_Testall.

#include <cstddef>
#include <cstring>

#include <zero/comm/mpi.hpp>

#include "wrapper_cost/measure.hpp"

namespace {

float memory[16];

/// What is called, on objects that are made once, and with what: nothing of it is known when this is compiled.
struct Objects {
  float* values = memory;
  int count = 4;
  zero::MpiCommunicator comm{MPI_COMM_WORLD};
  zero::HostStreamRef here = zero::HostStreamRef::calling_thread();
};

void wait(MPI_Request request) {
  for (int done = 0; done == 0;) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

constexpr bench::Case<Objects> cases[] = {
    {"all-gather",
     [](Objects& o) {
       MPI_Request request = MPI_REQUEST_NULL;
       MPI_Iallgather(MPI_IN_PLACE, o.count, MPI_FLOAT, o.values, o.count, MPI_FLOAT, o.comm.native_handle(), &request);
       wait(request);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::AllGather<float>{.send = o.values, .receive = o.values, .count = o.count}); }},
    {"all-to-all",
     [](Objects& o) {
       MPI_Request requests[2];
       std::memcpy(o.values + 8, o.values, static_cast<std::size_t>(o.count) * sizeof(float));
       MPI_Isend(o.values + 4, o.count, MPI_FLOAT, 1, 0, o.comm.native_handle(), &requests[0]);
       MPI_Irecv(o.values + 12, o.count, MPI_FLOAT, 1, 0, o.comm.native_handle(), &requests[1]);
       for (int done = 0; done == 0;) MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::AllToAll<float>{.send = o.values, .receive = o.values + 8, .count = o.count}); }},
    {"reduce-scatter",
     [](Objects& o) {
       MPI_Request request = MPI_REQUEST_NULL;
       MPI_Ireduce_scatter_block(o.values, o.values + 8, o.count, MPI_FLOAT, MPI_SUM, o.comm.native_handle(), &request);
       wait(request);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::ReduceScatter<float>{.send = o.values, .receive = o.values + 8, .count = o.count}); }},
    {"all-reduce",
     [](Objects& o) {
       MPI_Request request = MPI_REQUEST_NULL;
       MPI_Iallreduce(MPI_IN_PLACE, o.values, o.count, MPI_FLOAT, MPI_SUM, o.comm.native_handle(), &request);
       wait(request);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::AllReduce<float>{.send = o.values, .receive = o.values, .count = o.count}); }},
};

}  // namespace

int main(int argc, char** argv) {
  return bench::measure(argc, argv, cases, [] {});
}
