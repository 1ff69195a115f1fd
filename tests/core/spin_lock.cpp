// SPDX-License-Identifier: Apache-2.0
#include <zero/core/spin_lock.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

TEST_CASE("what a lock protects is touched by one thread at a time, and seen by the next") {
  zero::detail::SpinLock lock;
  std::int64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        zero::detail::LockGuard const guard(lock);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(count == 80'000);
}

TEST_CASE("a lock that is held is not taken twice") {
  zero::detail::SpinLock lock;
  CHECK(lock.try_lock());
  CHECK_FALSE(lock.try_lock());
  lock.unlock();
  {
    zero::detail::LockGuard const guard(lock);
    CHECK_FALSE(lock.try_lock());
  }
  CHECK(lock.try_lock());
  lock.unlock();
}

TEST_CASE("all who sleep for a lock get it, one after the other") {
  zero::detail::SpinLock lock;
  for (int round = 0; round < 20; ++round) {
    int count = 0;
    lock.lock();
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        zero::detail::LockGuard const guard(lock);
        ++count;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    lock.unlock();
    for (std::thread& thread : threads) thread.join();
    CHECK(count == 8);
    CHECK(lock.try_lock());  // Nobody waits any more, and it is free.
    lock.unlock();
  }
}
