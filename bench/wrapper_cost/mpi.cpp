// SPDX-License-Identifier: Apache-2.0
/// @file
/// `wrapper_cost_mpi <name> raw|zero|nothing`: the same as main.cpp for MPI. Raw is what has to be called to start a collective and to see that it
/// is done: one nonblocking call and one MPI_Test; for an all-to-all a copy of the own part, a loop over the peers each way, and one MPI_Testall.

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
       MPI_Request requests[64];
       MPI_Request* next = requests;
       float* const received = o.values + 8;
       std::memcpy(received + o.comm.rank() * o.count, o.values + o.comm.rank() * o.count,
                   static_cast<std::size_t>(o.count) * sizeof(float));
       for (int k = 1; k < o.comm.size(); ++k) {
         int const peer = (o.comm.rank() + k) % o.comm.size();
         MPI_Isend(o.values + peer * o.count, o.count, MPI_FLOAT, peer, 0, o.comm.native_handle(), next++);
       }
       for (int k = 1; k < o.comm.size(); ++k) {
         int const peer = (o.comm.rank() - k + o.comm.size()) % o.comm.size();
         MPI_Irecv(received + peer * o.count, o.count, MPI_FLOAT, peer, 0, o.comm.native_handle(), next++);
       }
       for (int done = 0; done == 0;) MPI_Testall(static_cast<int>(next - requests), requests, &done, MPI_STATUSES_IGNORE);
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
