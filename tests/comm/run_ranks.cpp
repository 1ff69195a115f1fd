// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/run_ranks.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <zero/comm/threads.hpp>

namespace {

using zero::AllReduce;
using zero::Barrier;
using zero::HostStream;
using zero::HostStreamRef;
using zero::ThreadCommunicator;

std::int64_t sum_of_ranks(ThreadCommunicator& comm, HostStreamRef stream) {
  std::int64_t value = comm.rank();
  comm.enqueue(stream, AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
  stream.synchronize();
  return value;
}

}  // namespace

TEST_CASE("starts each rank once, from one to many more than there are processors") {
  for (int ranks : {1, 2, 3, 8, 64}) {
    CAPTURE(ranks);
    std::vector<int> started(static_cast<std::size_t>(ranks), 0);
    std::atomic<int> right = 0;
    zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
      ++started[static_cast<std::size_t>(comm.rank())];
      HostStream stream({.worker = ranks <= 8 || comm.rank() % 2 == 0});
      for (int i = 0; i < 20; ++i) right += sum_of_ranks(comm, stream) == ranks * (ranks - 1) / 2 ? 1 : 0;
    });
    CHECK(right.load() == 20 * ranks);
    for (int times : started) CHECK(times == 1);
  }
}

TEST_CASE("runs nest") {
  std::atomic<int> right = 0;
  zero::run_ranks(2, [&](ThreadCommunicator& outer) {
    zero::run_ranks(3, [&](ThreadCommunicator& inner) { right += sum_of_ranks(inner, HostStreamRef::calling_thread()) == 3 ? 1 : 0; });
    right += sum_of_ranks(outer, HostStreamRef::calling_thread()) == 1 ? 1 : 0;
  });
  CHECK(right.load() == 8);
}

TEST_CASE("a failure of an inner run leaves the outer ranks to decide") {
  std::atomic<int> caught = 0;
  zero::run_ranks(2, [&](ThreadCommunicator& outer) {
    try {
      zero::run_ranks(2, [](ThreadCommunicator& inner) {
        if (inner.rank() == 1) throw std::runtime_error("inner");
        inner.enqueue(HostStreamRef::calling_thread(), Barrier{});
      });
    } catch (std::runtime_error const& error) {
      caught += std::string(error.what()) == "inner" ? 1 : 0;
    }
    outer.enqueue(HostStreamRef::calling_thread(), Barrier{});
  });
  CHECK(caught.load() == 2);
}

TEST_CASE("a failure of a larger inner run is passed on by an outer one that has no such rank") {
  std::string said;
  try {
    zero::run_ranks(1, [](ThreadCommunicator&) {
      zero::run_ranks(8, [](ThreadCommunicator& inner) {
        if (inner.rank() == 7) return;
        inner.enqueue(zero::HostStreamRef::calling_thread(), zero::Barrier{});
      });
    });
  } catch (zero::PeerError const& error) {
    said = error.what();
  }
  CHECK(said.find("rank 7 has returned") != std::string::npos);
}

TEST_CASE("passes on what was thrown first, after all ranks have ended") {
  std::atomic<int> ended = 0;
  struct Ending {
    std::atomic<int>& ended;
    ~Ending() { ended.fetch_add(1); }
  };
  CHECK_THROWS_WITH_AS(zero::run_ranks(4,
                                       [&](ThreadCommunicator& comm) {
                                         Ending const ending{ended};
                                         if (comm.rank() == 3) throw std::runtime_error("the first");
                                         try {
                                           comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
                                         } catch (zero::PeerError const&) {
                                           throw std::runtime_error("a later one");
                                         }
                                       }),
                       "the first", std::runtime_error);
  CHECK(ended.load() == 4);
}

TEST_CASE("passes on exceptions that are no std::exception") {
  try {
    zero::run_ranks(2, [](ThreadCommunicator& comm) {
      if (comm.rank() == 1) throw 7;  // NOLINT
      comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
    });
    FAIL("nothing was thrown");
  } catch (int value) {
    CHECK(value == 7);
  }
}

TEST_CASE("what a rank threw is passed on, also where its group was given up by the unwinding before") {
  std::atomic<int> peers = 0;
  CHECK_THROWS_WITH_AS(zero::run_ranks(3,
                                       [&](ThreadCommunicator& comm) {
                                         try {
                                           ThreadCommunicator child = comm.split(0);
                                           if (comm.rank() == 1) throw std::runtime_error("the reason");
                                           child.enqueue(HostStreamRef::calling_thread(), Barrier{});
                                         } catch (zero::PeerError const& error) {
                                           std::string const text = error.what();
                                           peers += error.peer() == 1 && text.find("rank 1 failed first: the reason") != std::string::npos;
                                           throw;
                                         }
                                       }),
                       "the reason", std::runtime_error);
  CHECK(peers.load() == 2);
}

namespace {

/// What owners of memory that queued work uses do.
struct AbortsWhenUnwound {
  ThreadCommunicator& comm;
  std::exception_ptr given = std::make_exception_ptr(zero::CommunicationError("an exception destroyed the parameters", comm.rank()));
  int exceptions = std::uncaught_exceptions();
  ~AbortsWhenUnwound() {
    if (std::uncaught_exceptions() > exceptions) comm.abort(given);
  }
};

}  // namespace

TEST_CASE("peers are told what a rank threw, also where a destructor has aborted the group before it was caught") {
  std::vector<std::string> texts(3);
  CHECK_THROWS_WITH_AS(zero::run_ranks(3,
                                       [&](ThreadCommunicator& comm) {
                                         HostStream stream;
                                         try {
                                           AbortsWhenUnwound const owner{comm};
                                           comm.enqueue(stream, Barrier{});
                                           stream.synchronize();
                                           if (comm.rank() == 2) {
                                             // Peers wait in the collective or come to it when the group is broken: the same text.
                                             std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                             throw std::runtime_error("the reason");
                                           }
                                           comm.enqueue(stream, Barrier{});
                                           stream.synchronize();
                                         } catch (zero::PeerError const& error) {
                                           texts[static_cast<std::size_t>(comm.rank())] = error.what();
                                           throw;
                                         }
                                       }),
                       "the reason", std::runtime_error);
  CHECK(texts[0] == "zero: rank 0: rank 2 failed first: the reason");
  CHECK(texts[1] == "zero: rank 1: rank 2 failed first: the reason");
}

TEST_CASE("peers do not wait long for the reason of a rank that catches it and goes on") {
  std::atomic<int> told = 0;
  auto const body = [&](ThreadCommunicator& comm) {
    try {
      AbortsWhenUnwound const owner{comm};
      if (comm.rank() == 1) throw std::runtime_error("caught");
      comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
    } catch (std::runtime_error const& error) {
      if (comm.rank() == 1) {
        told.wait(0);  // Does not end before its peer has been told.
      } else {
        CHECK(std::string(error.what()).find("rank 1 failed first: zero: rank 1: an exception destroyed") != std::string::npos);
        told = 1;
        told.notify_one();
      }
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(2, body), zero::CommunicationError);
  CHECK(told.load() == 1);
}

TEST_CASE("field case 68: the deadline names who is missing, on every rank that waits") {
  for (bool const worker : {false, true}) {
    std::vector<std::string> texts(3);
    CHECK_THROWS_AS(zero::run_ranks(3,
                                    [&](ThreadCommunicator& comm) {
                                      HostStream stream({.worker = worker});
                                      try {
                                        comm.enqueue(stream, Barrier{});
                                        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
                                        comm.enqueue(stream, Barrier{});
                                        stream.synchronize();
                                      } catch (zero::DeadlineError const& error) {
                                        CHECK(error.rank() == comm.rank());
                                        texts[static_cast<std::size_t>(comm.rank())] = error.what();
                                        throw;
                                      }
                                    },
                                    {.deadline_ms = 60}),
                    zero::DeadlineError);
    for (std::string const& text : texts) {
      CAPTURE(text);
      CHECK(text.find("missing 1; waiting 0, 2") != std::string::npos);
    }
  }
}

TEST_CASE("a deadline is for one collective, not for the run") {
  zero::run_ranks(2,
                  [](ThreadCommunicator& comm) {
                    for (int i = 0; i < 8; ++i) {
                      std::this_thread::sleep_for(std::chrono::milliseconds(20));
                      comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
                    }
                  },
                  {.deadline_ms = 100});
}

TEST_CASE("refuses wrong numbers") {
  auto const nothing = [](ThreadCommunicator&) {};
  CHECK_THROWS_AS(zero::run_ranks(0, nothing), zero::UsageError);
  CHECK_THROWS_AS(zero::run_ranks(2, nothing, {.deadline_ms = -1}), zero::UsageError);
  zero::run_ranks(2, nothing, {.deadline_ms = 0});
}
