// SPDX-License-Identifier: Apache-2.0
/// @file
/// One rank does something else than its peers, at every position of a sequence of collectives: a typed error on every rank, never a hang.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>

#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Barrier;
using zero::Broadcast;
using zero::HostStream;
using zero::HostStreamRef;
using zero::Label;
using zero::ReduceScatter;
using zero::Subject;
using zero::ThreadCommunicator;

enum class Fault {
  throws,
  returns,
  aborts,
  task_throws,
  other_operation,
  other_count,
  other_type,
  other_label,
  other_root,
  other_reduction,
  other_factor,
  splits
};

constexpr bool is_mismatch(Fault fault) { return fault >= Fault::other_operation; }

constexpr int positions = 6;

/// A fault that does not exist for an operation: a barrier has no count.
constexpr bool possible(Fault fault, int position) {
  bool const reduces = position == 1 || position == 2;
  if (fault == Fault::other_root) return position == 3;
  if (fault == Fault::other_reduction || fault == Fault::other_factor) return reduces;
  if (fault == Fault::other_count || fault == Fault::other_type) return position != 5;
  return true;
}

struct Injected : std::runtime_error {
  Injected() : std::runtime_error("injected") {}
};

struct Buffers {
  std::vector<double> send = std::vector<double>(1000, 1.0);
  std::vector<double> receive = std::vector<double>(1000, 1.0);
};

template <class T>
void typed(ThreadCommunicator& comm, HostStreamRef stream, Buffers& buffers, int position, Fault const* fault) {
  auto const is = [&](Fault which) { return fault != nullptr && *fault == which; };
  std::int64_t const count = is(Fault::other_count) ? 11 : 10;
  Label const label{Subject::gradients, is(Fault::other_label) ? 77 : position};
  float const factor = is(Fault::other_factor) ? 0.5f : 1.0f;
  auto* const send = reinterpret_cast<T*>(buffers.send.data());
  auto* const receive = reinterpret_cast<T*>(buffers.receive.data());
  switch (position) {
    case 0: return comm.enqueue(stream, AllGather<T>{.send = send, .receive = receive, .count = count, .label = label});
    case 1:
      if (is(Fault::other_reduction)) {
        return comm.enqueue(stream, ReduceScatter<T, zero::Max>{.send = send, .receive = receive, .count = count, .label = label});
      }
      return comm.enqueue(stream, ReduceScatter<T>{.send = send, .receive = receive, .count = count, .label = label, .factor = factor});
    case 2:
      if (is(Fault::other_reduction)) {
        return comm.enqueue(stream, AllReduce<T, zero::Max>{.send = send, .receive = send, .count = count, .label = label});
      }
      return comm.enqueue(stream, AllReduce<T>{.send = send, .receive = send, .count = count, .label = label, .factor = factor});
    case 3:
      return comm.enqueue(stream, Broadcast<T>{.buffer = send, .count = count, .root = is(Fault::other_root) ? 1 : 0, .label = label});
    case 4: return comm.enqueue(stream, AllToAll<T>{.send = send, .receive = receive, .count = count, .label = label});
    default: return comm.enqueue(stream, Barrier{label});
  }
}

/// What one rank ended with.
struct Ending {
  std::string type = "none";
  std::string text;
  int peer = -1;
  bool later_call_throws = false;
};

template <class Body>
Ending ending_of(Body body) {
  Ending ending;
  try {
    body();
    return ending;
  } catch (zero::MismatchError const& error) {
    ending.type = "mismatch";
    ending.text = error.what();
  } catch (zero::PeerError const& error) {
    ending.type = "peer";
    ending.text = error.what();
    ending.peer = error.peer();
  } catch (zero::DeadlineError const& error) {
    ending.type = "deadline";
    ending.text = error.what();
  } catch (Injected const& error) {
    ending.type = "injected";
    ending.text = error.what();
  } catch (std::exception const& error) {
    ending.type = "other";
    ending.text = error.what();
  }
  return ending;
}

/// Runs the sequence with a fault at one position of one rank.
std::vector<Ending> run_with(Fault fault, int faulty_rank, int faulty_position, bool worker) {
  int const ranks = zero::test::ranks();
  std::vector<Ending> endings(static_cast<std::size_t>(ranks));
  std::string const thrown = ending_of([&] {
                               zero::run_ranks(ranks,
                                               [&](ThreadCommunicator& comm) {
                                                 Buffers buffers;
                                                 HostStream stream({.worker = worker});
                                                 Ending& ending = endings[static_cast<std::size_t>(comm.rank())];
                                                 bool returned = false;
                                                 ending = ending_of([&] {
                                                   for (int position = 0; position < positions; ++position) {
                                                     bool const now = comm.rank() == faulty_rank && position == faulty_position;
                                                     if (now && fault == Fault::throws) throw Injected();
                                                     if (now && fault == Fault::returns) {
                                                       stream.synchronize();
                                                       returned = true;
                                                       return;
                                                     }
                                                     if (now && fault == Fault::aborts) comm.abort(std::make_exception_ptr(Injected()));
                                                     if (now && fault == Fault::task_throws) stream.enqueue([] { throw Injected(); });
                                                     if (now && fault == Fault::splits) static_cast<void>(comm.split(0));
                                                     int const operation =
                                                         now && fault == Fault::other_operation ? (position + 1) % positions : position;
                                                     if (now && fault == Fault::other_type) {
                                                       typed<std::int32_t>(comm, stream, buffers, operation, nullptr);
                                                     } else {
                                                       typed<float>(comm, stream, buffers, operation, now ? &fault : nullptr);
                                                     }
                                                   }
                                                   stream.synchronize();
                                                 });
                                                 if (returned) return;
                                                 if (ending.type == "injected")
                                                   comm.abort(std::make_exception_ptr(Injected()));  // As leaving the body would.
                                                 if (ending.type == "none") return;
                                                 try {
                                                   comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
                                                 } catch (std::exception const&) {
                                                   ending.later_call_throws = true;
                                                 }
                                                 // Nobody returns before all have called again: they would be told of the return.
                                                 if (ending.type == "injected") throw Injected();
                                                 throw zero::PeerError(ending.text, comm.rank(), ending.peer);
                                               },
                                               {.deadline_ms = 20'000});
                             }).type;
  CHECK(thrown != "none");
  CHECK(thrown != "deadline");
  return endings;
}

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

void check(Fault fault, bool worker) {
  int const ranks = zero::test::ranks();
  for (int faulty_rank : {0, ranks - 1}) {
    for (int position = 0; position < positions; ++position) {
      if (!possible(fault, position)) continue;
      CAPTURE(faulty_rank);
      CAPTURE(position);
      CAPTURE(worker);
      std::vector<Ending> const endings = run_with(fault, faulty_rank, position, worker);
      std::string const faulty_name = "rank " + std::to_string(faulty_rank);
      for (int rank = 0; rank < ranks; ++rank) {
        Ending const& ending = endings[static_cast<std::size_t>(rank)];
        CAPTURE(rank);
        CAPTURE(ending.text);
        if (fault == Fault::returns && rank == faulty_rank) {
          CHECK(ending.type == "none");
          continue;
        }
        CHECK(ending.later_call_throws);
        if (is_mismatch(fault)) {
          CHECK(ending.type == "mismatch");
          CHECK(contains(ending.text, faulty_name + " calls "));
          CHECK(contains(ending.text, "zero: rank " + std::to_string(rank) + ":"));
          if (fault == Fault::other_label)
            CHECK((contains(ending.text, "gradients 77") && contains(ending.text, "gradients " + std::to_string(position))));
          if (fault == Fault::other_count) CHECK((contains(ending.text, " of 11 ") && contains(ending.text, " of 10 ")));
          if (fault == Fault::other_type) CHECK((contains(ending.text, "int32") && contains(ending.text, "fp32")));
          if (fault == Fault::other_root) CHECK((contains(ending.text, "root 0") && contains(ending.text, "root 1")));
          if (fault == Fault::other_reduction) CHECK((contains(ending.text, "(max)") && contains(ending.text, "(sum)")));
          if (fault == Fault::other_factor) CHECK(contains(ending.text, "times 0.5"));
          if (fault == Fault::splits) CHECK(contains(ending.text, "calls split"));
        } else if (rank == faulty_rank) {
          CHECK(ending.type == "injected");
        } else {
          CHECK(ending.type == "peer");
          CHECK(ending.peer == faulty_rank);
          CHECK(contains(ending.text, fault == Fault::returns ? faulty_name + " has returned" : "injected"));
        }
      }
    }
  }
}

void check(Fault fault) {
  check(fault, false);
  check(fault, true);
}

}  // namespace

TEST_CASE("field case 67: a rank throws") { check(Fault::throws); }
TEST_CASE("field case 69: a rank returns early") { check(Fault::returns); }
TEST_CASE("field case 67: a rank aborts") { check(Fault::aborts); }
TEST_CASE("a task before a collective throws on one rank") { check(Fault::task_throws); }
TEST_CASE("field case 57: a rank calls another operation") { check(Fault::other_operation); }
TEST_CASE("field cases 58, 65: a rank calls with another count") { check(Fault::other_count); }
TEST_CASE("field case 65: a rank calls with another type") { check(Fault::other_type); }
TEST_CASE("field case 62: a rank calls for something else") { check(Fault::other_label); }
TEST_CASE("a rank broadcasts from another root") { check(Fault::other_root); }
TEST_CASE("a rank reduces otherwise") { check(Fault::other_reduction); }
TEST_CASE("a rank scales otherwise") { check(Fault::other_factor); }
TEST_CASE("a rank splits where the others do not") { check(Fault::splits); }

TEST_CASE("a collective dropped by a failed stream wakes the peers before its rank looks at the stream") {
  int const ranks = zero::test::ranks();
  std::atomic<int> woken = 0;
  std::atomic<int> named = 0;
  CHECK_THROWS_AS(zero::run_ranks(ranks,
                                  [&](ThreadCommunicator& comm) {
                                    HostStream stream;
                                    if (comm.rank() == ranks - 1) {
                                      std::atomic<bool> queued = false;
                                      stream.enqueue([&queued] {
                                        queued.wait(false);
                                        throw Injected();
                                      });
                                      comm.enqueue(stream, Barrier{});
                                      queued = true;
                                      queued.notify_one();
                                      for (int seen = woken.load(); seen < ranks - 1; seen = woken.load()) woken.wait(seen);
                                      stream.synchronize();
                                    }
                                    try {
                                      comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
                                    } catch (zero::PeerError const& error) {
                                      if (error.peer() == ranks - 1 && contains(error.what(), "injected")) ++named;
                                      ++woken;
                                      woken.notify_all();
                                      throw;
                                    }
                                  },
                                  {.deadline_ms = 20'000}),
                  Injected);
  CHECK(named.load() == ranks - 1);
}

TEST_CASE("field case 63: a failed stream takes the other stream of its communicator along") {
  auto const body = [](ThreadCommunicator& comm) {
    std::atomic<bool> queued = comm.rank() != 0;
    HostStream first;
    HostStream second;
    first.enqueue([&queued, fails = comm.rank() == 0] {
      queued.wait(false);
      if (fails) throw Injected();
    });
    comm.enqueue(first, Barrier{{.index = 1}});
    comm.enqueue(second, Barrier{{.index = 2}});
    queued = true;
    queued.notify_one();
    second.synchronize();  // Would wait for the first stream's turn for ever.
    CHECK(false);
  };
  CHECK_THROWS_AS(zero::run_ranks(zero::test::ranks(), body, {.deadline_ms = 20'000}), Injected);
}

TEST_CASE("a handle that ends before its last operation is missed only after it") {
  int const ranks = zero::test::ranks();
  std::atomic<int> told = 0;
  zero::run_ranks(ranks,
                  [&](ThreadCommunicator& comm) {
                    std::atomic<bool> ended = comm.rank() != 0;
                    HostStream stream;
                    stream.enqueue([&ended] { ended.wait(false); });
                    {
                      ThreadCommunicator child = comm.split(0);
                      child.enqueue(stream, Barrier{{.index = 1}});
                      if (comm.rank() != 0) {
                        stream.synchronize();  // The first one completes.
                        try {
                          child.enqueue(HostStreamRef::calling_thread(), Barrier{{.index = 2}});
                        } catch (zero::PeerError const& error) {
                          told += error.peer() == 0 && contains(error.what(), "rank 0 has returned") ? 1 : 0;
                        }
                      }
                    }
                    ended = true;
                    ended.notify_one();
                    stream.synchronize();
                    comm.enqueue(HostStreamRef::calling_thread(), Barrier{});  // The other group is not concerned.
                  },
                  {.deadline_ms = 20'000});
  CHECK(told.load() == ranks - 1);
}

TEST_CASE("groups split from one another fail together") {
  int const ranks = zero::test::ranks();
  std::atomic<int> peers = 0;
  auto const body = [&](ThreadCommunicator& comm) {
    try {
      ThreadCommunicator child = comm.split(comm.rank() == 0 ? 0 : 1);
      if (comm.rank() == 0) throw Injected();
      ThreadCommunicator grandchild = child.split(0);
      for (;;) grandchild.enqueue(HostStreamRef::calling_thread(), Barrier{});  // Rank 0 is in neither of these groups.
    } catch (zero::PeerError const& error) {
      peers += error.peer() == -1 && error.peer_in_first_group() == 0 && contains(error.what(), "rank 0 of the first group failed") ? 1 : 0;
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(ranks, body, {.deadline_ms = 20'000}), Injected);
  CHECK(peers.load() == ranks - 1);
}

TEST_CASE("the first cause is kept") {
  std::vector<std::string> texts(static_cast<std::size_t>(zero::test::ranks()));
  CHECK_THROWS_WITH_AS(zero::run_ranks(zero::test::ranks(),
                                       [&](ThreadCommunicator& comm) {
                                         HostStreamRef const here = HostStreamRef::calling_thread();
                                         comm.enqueue(here, Barrier{});
                                         if (comm.rank() == 1) {
                                           comm.abort(std::make_exception_ptr(std::runtime_error("first")));
                                           comm.abort(std::make_exception_ptr(std::runtime_error("second")));
                                         }
                                         try {
                                           comm.enqueue(here, Barrier{});
                                         } catch (std::exception const& error) {
                                           texts[static_cast<std::size_t>(comm.rank())] = error.what();
                                           throw;
                                         }
                                       }),
                       "first", std::runtime_error);
  for (std::string const& text : texts) CHECK(contains(text, "first"));
}
