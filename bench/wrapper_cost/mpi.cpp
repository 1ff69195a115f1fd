// SPDX-License-Identifier: Apache-2.0
/// @file
/// `wrapper_cost_mpi <name> raw|zero|nothing`: the same as main.cpp for MPI. Raw is what has to be called to start a collective and to see that it
/// is done: one nonblocking call and one MPI_Test.

#include <zero/comm/mpi.hpp>

#include <cstdio>
#include <string>

namespace {

constexpr int calls = 1000;
constexpr int count = 4;
float memory[4 * count];

struct Objects {
  zero::MpiCommunicator comm{MPI_COMM_WORLD};
  zero::HostStreamRef here = zero::HostStreamRef::calling_thread();
};

struct Case {
  char const* name;
  void (*raw)(Objects&);
  void (*zero)(Objects&);
};

void wait(MPI_Request request) {
  for (int done = 0; done == 0;) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

constexpr Case cases[] = {
    {"all-gather",
     [](Objects& o) {
       MPI_Request request = MPI_REQUEST_NULL;
       MPI_Iallgather(MPI_IN_PLACE, count, MPI_FLOAT, memory, count, MPI_FLOAT, o.comm.native_handle(), &request);
       wait(request);
     },
     [](Objects& o) { o.comm.enqueue(o.here, zero::AllGather<float>{.send = memory, .receive = memory, .count = count}); }},
    {"all-to-all",
     [](Objects& o) {
       MPI_Request request = MPI_REQUEST_NULL;
       MPI_Ialltoall(memory, count, MPI_FLOAT, memory + 2 * count, count, MPI_FLOAT, o.comm.native_handle(), &request);
       wait(request);
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

extern "C" [[gnu::noinline]] void measured(void (*work)(void*), void* data) {
  for (int i = 0; i < calls; ++i) work(data);
}

int main(int argc, char** argv) {
  std::string const name = argc == 3 ? argv[1] : "";
  std::string const way = argc == 3 ? argv[2] : "";
  if (name == "list") {
    for (Case const& c : cases) std::puts(c.name);
    return 0;
  }
  for (Case const& c : cases) {
    if (name != c.name) continue;
    static void (*work)(Objects&) = way == "raw" ? c.raw : way == "zero" ? c.zero : +[](Objects&) {};
    Objects objects;
    measured([](void* data) { work(*static_cast<Objects*>(data)); }, &objects);
    return 0;
  }
  std::fputs("wrapper_cost_mpi <name> raw|zero|nothing, or: list names\n", stderr);
  return 2;
}
