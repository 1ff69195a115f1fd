// SPDX-License-Identifier: Apache-2.0
#include <zero/core/spin_lock.hpp>

#include <doctest/doctest.h>

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
