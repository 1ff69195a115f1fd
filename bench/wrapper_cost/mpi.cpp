// SPDX-License-Identifier: Apache-2.0
/// @file
/// `wrapper_cost_mpi <name> raw|zero|nothing`: the same as main.cpp for MPI. Raw is what has to be called to start a collective and to see that it
/// is done: one nonblocking call and one MPI_Test; for an all-to-all a copy of the own part, a message each way, and one MPI_Testall.

#include <cstring>

#include <zero/comm/mpi.hpp>

#include "wrapper_cost/measure.hpp"

namespace {

constexpr int count = 4;
float memory[4 * count];

struct Objects {
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
       MPI_Iallgather(MPI_IN_PLACE, count, MPI_FLOAT, memory, count, MPI_FLOAT, o.comm.native_handle(), &request);
       wait(request);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::AllGather<float>{.send = memory, .receive = memory, .count = count}); }},
    {"all-to-all",
     [](Objects& o) {
       MPI_Request requests[2];
       std::memcpy(memory + 2 * count, memory, count * sizeof(float));
       MPI_Isend(memory + count, count, MPI_FLOAT, 1, 0, o.comm.native_handle(), &requests[0]);
       MPI_Irecv(memory + 3 * count, count, MPI_FLOAT, 1, 0, o.comm.native_handle(), &requests[1]);
       for (int done = 0; done == 0;) MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::AllToAll<float>{.send = memory, .receive = memory + 2 * count, .count = count}); }},
    {"reduce-scatter",
     [](Objects& o) {
       MPI_Request request = MPI_REQUEST_NULL;
       MPI_Ireduce_scatter_block(memory, memory + 2 * count, count, MPI_FLOAT, MPI_SUM, o.comm.native_handle(), &request);
       wait(request);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::ReduceScatter<float>{.send = memory, .receive = memory + 2 * count, .count = count}); }},
    {"all-reduce",
     [](Objects& o) {
       MPI_Request request = MPI_REQUEST_NULL;
       MPI_Iallreduce(MPI_IN_PLACE, memory, count, MPI_FLOAT, MPI_SUM, o.comm.native_handle(), &request);
       wait(request);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::AllReduce<float>{.send = memory, .receive = memory, .count = count}); }},
};

}  // namespace

int main(int argc, char** argv) {
  return bench::measure(argc, argv, cases, [] {});
}
