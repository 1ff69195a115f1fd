// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Ranks over NCCL that may fail: how each of them ended, and whether anything of NCCL is left.

#include <cstddef>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <zero/comm/nccl_start.hpp>

#include "support/nccl_ranks.hpp"

namespace zero::test {

inline bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

struct Injected : std::runtime_error {
  Injected() : std::runtime_error("injected") {}
};

/// How a rank ended.
struct Ending {
  enum class Type { none, nccl, deadline, peer, communication, usage, other };
  Type type = Type::none;
  std::string text;
  std::string call;
  ncclResult_t result = ncclSuccess;
};

inline Ending ending_of(std::exception_ptr const& failure) {
  using Type = Ending::Type;
  if (failure == nullptr) return {};
  try {
    std::rethrow_exception(failure);
  } catch (zero::NcclError const& error) {
    return {Type::nccl, error.what(), error.call(), error.result()};
  } catch (zero::DeadlineError const& error) {
    return {Type::deadline, error.what(), "", ncclSuccess};
  } catch (zero::PeerError const& error) {
    return {Type::peer, error.what(), "", ncclSuccess};
  } catch (zero::CommunicationError const& error) {
    return {Type::communication, error.what(), "", ncclSuccess};
  } catch (zero::UsageError const& error) {
    return {Type::usage, error.what(), "", ncclSuccess};
  } catch (std::exception const& error) {
    return {Type::other, error.what(), "", ncclSuccess};
  }
}

/// Runs `body(threads)` on every rank, each on its device, and says how each ended.
inline std::vector<Ending> endings_of(int ranks, std::function<void(ThreadCommunicator&)> const& body) {
  std::vector<Ending> endings(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
    zero::test::this_is_rank(threads.rank());
    CHECK_NOTHROW(zero::detail::check_cuda("cudaSetDevice", cudaSetDevice(threads.rank()), {}));
    try {
      body(threads);
    } catch (...) {
      endings[static_cast<std::size_t>(threads.rank())] = ending_of(std::current_exception());
    }
    zero::test::this_is_rank(-1);
  });
  return endings;
}

/// Of what the stand-in counts.
inline bool nothing_is_left() {
#if defined(ZERO_TEST_STANDIN)
  zero::standin::NcclLive const live = zero::standin::live_nccl();
  CAPTURE(live.communicators);
  CAPTURE(live.reductions);
  return live.communicators == 0 && live.blocks == 0 && live.windows == 0;
#else
  return true;
#endif
}

}  // namespace zero::test
