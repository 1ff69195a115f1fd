// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Operations as calls of NCCL, and how communicators are made and split.

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/detail/nccl_family.hpp>
#include <zero/comm/detail/nccl_handle.hpp>
#include <zero/comm/nccl_error.hpp>
#include <zero/comm/nccl_options.hpp>
#include <zero/comm/nccl_types.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_stream.hpp>

namespace zero::detail {

/// The scope of calls of NCCL.
class NcclUse {
public:
  NcclUse(NcclHandle& handle, SourceLocation where) : handle_(handle) { handle.lock(where); }
  NcclUse(NcclUse const&) = delete;
  NcclUse& operator=(NcclUse const&) = delete;
  ~NcclUse() { handle_.unlock(); }

private:
  NcclHandle& handle_;
};

/// Operations as calls on one communicator and stream, inside an `NcclUse`.
class NcclCall {
public:
  NcclCall(NcclHandle& handle, CudaStreamRef stream) noexcept : NcclCall(handle, handle.native(), stream) {}
  NcclCall(NcclHandle& handle, ncclComm_t comm, CudaStreamRef stream) noexcept : handle_(handle), comm_(comm), stream_(stream.native()) {}

  template <Element T>
  [[gnu::always_inline]] void perform(AllGather<T> const& o) {
    handle_.finish("ncclAllGather", ncclAllGather(o.send, o.receive, size(o.count), type<T>, comm_, stream_));
  }

  template <Element T, class Op>
    requires NcclReduction<T, Op>
  [[gnu::always_inline]] void perform(ReduceScatter<T, Op> const& o) {
    handle_.finish("ncclReduceScatter",
                   ncclReduceScatter(o.send, o.receive, size(o.count), type<T>, reduction<T, Op>(o.factor), comm_, stream_));
  }

  template <Element T, class Op>
    requires NcclReduction<T, Op>
  [[gnu::always_inline]] void perform(AllReduce<T, Op> const& o) {
    handle_.finish("ncclAllReduce", ncclAllReduce(o.send, o.receive, size(o.count), type<T>, reduction<T, Op>(o.factor), comm_, stream_));
  }

  template <Element T>
  void perform(Broadcast<T> const& o) {
    handle_.finish("ncclBroadcast", ncclBroadcast(o.buffer, o.buffer, size(o.count), type<T>, o.root, comm_, stream_));
  }

  template <Element T>
  void perform(AllToAll<T> const& o) {
    // A group of sends and receives, which every version has.
    handle_.check("ncclGroupStart", ncclGroupStart());
    char const* call = "ncclGroupEnd";
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < handle_.size() && proceeds(result); ++peer) {
      if (peer == handle_.rank() && !o.own_part) continue;
      result = ncclSend(o.send + peer * o.send_stride(), size(o.count), type<T>, peer, comm_, stream_);
      if (!proceeds(result)) call = "ncclSend";
      if (proceeds(result)) {
        result = ncclRecv(o.receive + o.place(peer, handle_.rank()), size(o.count), type<T>, peer, comm_, stream_);
        if (!proceeds(result)) call = "ncclRecv";
      }
    }
    ncclResult_t const end = ncclGroupEnd();  // Also after a failure: the thread would stay inside the group.
    handle_.settle(call, proceeds(result) ? end : result);
  }

  void perform(Barrier const&) {
    // The value does not matter, and the largest of zeros stays zero.
    auto* const value = reinterpret_cast<std::int32_t*>(handle_.scratch());
    handle_.finish("ncclAllReduce", ncclAllReduce(value, value, 1, ncclInt32, ncclMax, comm_, stream_));
  }

private:
  template <Element T>
  static constexpr ncclDataType_t type = nccl_data_type(element_traits<T>::type);

  static std::size_t size(std::int64_t count) noexcept { return static_cast<std::size_t>(count); }
  static bool proceeds(ncclResult_t result) noexcept { return result == ncclSuccess || result == ncclInProgress; }

  template <Element T, class Op>
  [[gnu::always_inline]] ncclRedOp_t reduction(float factor) {
    if constexpr (std::is_same_v<Op, Max>) {
      return ncclMax;
    } else {
      if constexpr (RealElement<T>) {
        if (!is_one(factor)) return handle_.multiplying_sum(type<T>, element_cast<T>(factor), factor);
      }
      return ncclSum;
    }
  }

  NcclHandle& handle_;
  ncclComm_t comm_;
  cudaStream_t stream_;
};

/// What an `NcclCommunicator` performs.
template <class Operation>
concept NcclOperation = requires(NcclCall call, Operation const& operation) { call.perform(operation); };

/// @throws UsageError for a factor, other than 1, that NCCL cannot apply exactly.
template <class Operation>
[[gnu::noinline]] void check_nccl_multiplies(Operation const& operation, int ranks, RankName rank, SourceLocation where) {
  std::string const factor = "the factor is " + std::to_string(operation.factor);
  if (ranks == 1) refuse<Operation>(factor + ", and one rank has nothing to add: scale where the value is used", where, rank);
  if (!nccl_multiplies_exactly<typename Operation::element>(operation.factor)) {
    refuse<Operation>(factor +
                          "; NCCL multiplies the addends before it adds them, which is what is asked for only for powers of two: scale "
                          "where the sum is used",
                      where, rank);
  }
}

/// @throws UsageError for a factor that NCCL cannot apply exactly.
template <class Operation>
void check_nccl_factor(Operation const& operation, int ranks, RankName rank, SourceLocation where) {
  if constexpr (requires {
                  operation.factor;
                  requires RealElement<typename Operation::element>;
                }) {
    if (operation.factor != 1.0f) check_nccl_multiplies(operation, ranks, rank, where);
  }
}

/// The operation of a group of one rank: a copy, if the result is not in place.
template <class Operation>
void enqueue_nccl_alone(CudaStreamRef stream, Operation const& operation, SourceLocation where) {
  if constexpr (requires { operation.own_part; }) {
    if (!operation.own_part) return;
  }
  if constexpr (requires { operation.send; }) {
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(typename Operation::element));
    CudaDevice::copy(stream, operation.receive, operation.send, operation.count * bytes, where);
  }
}

/// A handle for a communicator that is about to be made. Sets the place's device where it was left open.
/// @throws UsageError, NcclError, DeviceError, Error
[[nodiscard]] inline std::unique_ptr<NcclHandle> make_nccl_handle(NcclPlace& place, NcclOptions const& options,
                                                                  std::shared_ptr<NcclDomain> domain, SourceLocation where) {
  check_place(place, options, where);
  place.device = require_cuda_device(place.device, where);
  auto family = std::make_shared<NcclFamily>(std::move(domain), place.rank, place.device, options.deadline_ms);
  return std::make_unique<NcclHandle>(std::move(family), NcclOwnership{});
}

/// Collective: all ranks learn all colors, before NCCL would wait for ranks that refuse. Waits.
/// @throws UsageError on every rank for a negative color.
inline void check_nccl_colors(NcclHandle& handle, int color, int key, SourceLocation where) {
  handle.check_outside_group("split", where);
  handle.wait_in_flight();
  auto* const table = reinterpret_cast<std::int64_t*>(handle.scratch() + NcclHandle::scratch_bytes);
  table[2 * handle.rank()] = color;
  table[2 * handle.rank() + 1] = key;
  if (handle.size() > 1) {
    CudaStream const stream({.device = handle.device(), .events = 2}, where);
    {
      NcclUse const use(handle, where);
      NcclCall(handle, stream).perform(AllGather<std::int64_t>{.send = table + 2 * handle.rank(), .receive = table, .count = 2});
    }
    handle.track(stream, "split", Label{Subject::control}, where);
    handle.wait_in_flight();
    stream.throw_if_failed();
  }
  for (int peer = 0; peer < handle.size(); ++peer) {
    if (table[2 * peer] >= 0) continue;
    throw UsageError("split: rank " + std::to_string(peer) + " gives the color " + std::to_string(table[2 * peer]) +
                         "; colors are not negative, every rank belongs to one group",
                     where, handle.name());
  }
}

/// Splits `parent` into the slot of `child`, and waits until both can be used.
/// @throws NcclError, DeadlineError
inline void split_nccl(NcclHandle& parent, NcclHandle& child, int color, int key, SourceLocation where) {
  CudaDeviceGuard const guard(parent.device(), where);
  // Without a configuration the child has the parent's, which is non-blocking unless it was adopted.
  ncclConfig_t adopted = NCCL_CONFIG_INITIALIZER;
  adopted.blocking = 0;
  try {
    NcclUse const use(parent, where);
    parent.settle("ncclCommSplit", ncclCommSplit(parent.native(), color, key, child.slot(), parent.owned() ? nullptr : &adopted));
  } catch (...) {
    if (!parent.wait_for_abort()) child.abandon_slot();  // NCCL may still write to it.
    throw;
  }
  child.take("ncclCommSplit", ncclSuccess);
}

}  // namespace zero::detail
