// SPDX-License-Identifier: Apache-2.0
/// @file
/// When a rank looks for notices of peers that have failed: MPI's own functions are counted, and made to find an operation done, or not.

#include <zero/comm/mpi.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/ranks.hpp"

namespace {

std::atomic<int> looks = 0;
std::atomic<int> late_tests = 0;  ///< So many times MPI_Test says that it is not done.

}  // namespace

// MPI lets a program define its functions, and call the library's by another name.
extern "C" {

int MPI_Improbe(int source, int tag, MPI_Comm comm, int* found, MPI_Message* message, MPI_Status* status) {
  ++looks;
  return PMPI_Improbe(source, tag, comm, found, message, status);
}

/// As if the peers had always been first.
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  *done = 0;
  if (late_tests > 0) {
    --late_tests;
    return MPI_SUCCESS;
  }
  int code = MPI_SUCCESS;
  while (code == MPI_SUCCESS && *done == 0) {
    code = PMPI_Test(request, done, status);
    std::this_thread::yield();
  }
  return code;
}

}  // extern "C"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Barrier;
using zero::Broadcast;
using zero::HostStreamRef;
using zero::MpiCommunicator;
using zero::ReduceScatter;

/// How often a rank looks in the course of one operation.
template <class Operation>
int looks_in(MpiCommunicator& comm, Operation const& operation) {
  int const before = looks;
  comm.enqueue(HostStreamRef::calling_thread(), operation);
  return looks - before;
}

/// The operations that end only where all ranks have begun them.
template <class Check>
void for_each_meeting(MpiCommunicator& comm, Check const& check) {
  std::vector<float> values(static_cast<std::size_t>(2 * comm.size()));
  float* const front = values.data();
  float* const back = front + comm.size();
  check(AllGather<float>{.send = front + comm.rank(), .receive = front, .count = 1});
  check(AllToAll<float>{.send = front, .receive = back, .count = 1});
  check(ReduceScatter<float>{.send = front, .receive = back, .count = 1});
  check(ReduceScatter<float>{.send = front, .receive = front + comm.rank(), .count = 1});
  check(AllReduce<float>{.send = front, .receive = front, .count = 1});
  check(Barrier{});
}

}  // namespace

TEST_CASE("a rank that finds an operation of all ranks done does not look for notices") {
  MpiCommunicator world(MPI_COMM_WORLD);
  MpiCommunicator copy = world.split(0);
  for_each_meeting(world, [&](auto const& operation) { CHECK(looks_in(world, operation) == 0); });
  for_each_meeting(copy, [&](auto const& operation) { CHECK(looks_in(copy, operation) == 0); });
}

TEST_CASE("a rank that has to wait looks for notices") {
  if (zero::test::ranks() == 1) return;
  MpiCommunicator world(MPI_COMM_WORLD);
  for_each_meeting(world, [&](auto const& operation) {
    late_tests = 50;
    CHECK(looks_in(world, operation) > 0);
  });
}

TEST_CASE("a rank looks for notices before and behind an operation that may end although others have not begun it") {
  if (zero::test::ranks() == 1) return;
  MpiCommunicator world(MPI_COMM_WORLD);
  float value = 1;
  for (int root = 0; root < world.size(); ++root) CHECK(looks_in(world, Broadcast<float>{.buffer = &value, .count = 1, .root = root}) >= 2);
  CHECK(looks_in(world, AllGather<float>{}) >= 2);
  CHECK(looks_in(world, AllToAll<float>{}) >= 2);
  CHECK(looks_in(world, ReduceScatter<float>{}) >= 2);
  CHECK(looks_in(world, AllReduce<float>{}) >= 2);
}

TEST_CASE("a rank looks for notices behind each operation of a group that is not all ranks") {
  if (zero::test::ranks() < 3) return;
  MpiCommunicator world(MPI_COMM_WORLD);
  MpiCommunicator part = world.split(world.rank() == 0 ? 0 : 1);
  if (world.rank() > 0) for_each_meeting(part, [&](auto const& operation) { CHECK(looks_in(part, operation) > 0); });
}
