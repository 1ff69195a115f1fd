// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Ways to start an `NcclCommunicator`: from what a launcher has set, over another communicator such as MPI's, for all devices of one process.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/nccl_calls.hpp>
#include <zero/comm/detail/nccl_domain.hpp>
#include <zero/comm/detail/nccl_handle.hpp>
#include <zero/comm/launch_environment.hpp>
#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_error.hpp>
#include <zero/comm/nccl_options.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/host_device.hpp>

namespace zero {

namespace detail {

/// Sets a variable of the environment for a while, unless it is set.
class ScopedVariable {
public:
  ScopedVariable(char const* name, std::string const& value) : name_(name), set_(std::getenv(name) == nullptr) {
    if (set_) ::setenv(name_, value.c_str(), 1);
  }
  ScopedVariable(ScopedVariable const&) = delete;
  ScopedVariable& operator=(ScopedVariable const&) = delete;
  ~ScopedVariable() {
    if (set_) ::unsetenv(name_);
  }

private:
  char const* name_;
  bool set_;
};

/// The device of a process that is the n-th of its host. A launcher that shows each process only one device makes that number 0.
[[nodiscard]] inline int device_of_local_rank(int local_rank, SourceLocation where) {
  static_cast<void>(require_cuda_device(-1, where));
  int count = 0;
  check_cuda("cudaGetDeviceCount", cudaGetDeviceCount(&count), where);
  if (count == 1) return 0;
  if (local_rank >= count) {
    throw UsageError("this process is number " + std::to_string(local_rank) + " of its host, counted from 0, which has " +
                         std::to_string(count) + " CUDA devices",
                     where);
  }
  return local_rank;
}

}  // namespace detail

/// Joins the ranks of a launch whose place is known. No other channel is needed: all ranks give NCCL the address at which rank 0 listens
/// (NCCL_COMM_ID, which is set only meanwhile, so no other thread may use the environment then).
/// @throws UsageError where this host has too few devices, or as `NcclCommunicator`'s constructor; NcclError; DeadlineError; DeviceError.
/// @par Communication
/// Collective; waits for the peers.
[[nodiscard]] inline NcclCommunicator nccl_launched(LaunchEnvironment const& place, NcclOptions const& options = {},
                                                    SourceLocation where = SourceLocation::current()) {
  int const device = detail::device_of_local_rank(place.local_rank, where);
  detail::ScopedVariable const address("NCCL_COMM_ID", place.address);
  ncclUniqueId id;
  detail::check_nccl("ncclGetUniqueId", ncclGetUniqueId(&id), place.rank);
  return NcclCommunicator(id, {.rank = place.rank, .ranks = place.ranks, .device = device}, options, where);
}

/// Joins the ranks that torchrun, Slurm or mpirun started, see `read_launch_environment`.
/// @throws UsageError that names the variable that is missing or wrong; otherwise as `nccl_launched`.
/// @par Communication
/// Collective; waits for the peers.
[[nodiscard]] inline NcclCommunicator nccl_from_environment(NcclOptions const& options = {},
                                                            SourceLocation where = SourceLocation::current()) {
  return nccl_launched(read_launch_environment(where), options, where);
}

/// Joins the ranks of another communicator, which carries NCCL's unique id from its rank 0 to the others: MPI, or threads.
/// @param host    A communicator on the host that broadcasts bytes. Not used afterwards.
/// @param device  Number of this rank's CUDA device; -1: the one that is current for the calling thread.
/// @throws CommunicationError on all ranks where rank 0 gets no id; what `host` throws; otherwise as `NcclCommunicator`'s constructor.
/// @par Communication
/// Collective: a broadcast of 256 bytes, and NCCL's start.
template <Broadcasts<std::uint8_t> Host>
  requires std::is_same_v<typename Host::Device, HostDevice>
[[nodiscard]] NcclCommunicator nccl_over(Host& host, NcclOptions const& options = {}, int device = -1,
                                         SourceLocation where = SourceLocation::current()) {
  // The id, or why there is none: the peers wait for one or the other.
  std::array<std::uint8_t, 256> message{};
  static_assert(sizeof(ncclUniqueId) < message.size());
  std::exception_ptr failure;
  if (host.rank() == 0) {
    try {
      ncclUniqueId id;
      detail::check_nccl("ncclGetUniqueId", ncclGetUniqueId(&id), 0);
      std::memcpy(message.data() + 1, &id, sizeof id);
      message[0] = 1;
    } catch (std::exception const& error) {
      failure = std::current_exception();
      std::string const text = error.what();
      std::memcpy(message.data() + 1, text.data(), text.size() < message.size() - 2 ? text.size() : message.size() - 2);
    }
  }
  HostStreamRef const here = HostStreamRef::calling_thread();
  detail::enqueue_at(
      host, here,
      Broadcast<std::uint8_t>{
          .buffer = message.data(), .count = static_cast<std::int64_t>(message.size()), .root = 0, .label = {Subject::control}},
      where);
  if (failure != nullptr) std::rethrow_exception(failure);
  if (message[0] == 0) {
    throw CommunicationError("rank 0 has no NCCL id: " + std::string(reinterpret_cast<char const*>(message.data() + 1)), host.rank());
  }
  ncclUniqueId id;
  std::memcpy(&id, message.data() + 1, sizeof id);
  return NcclCommunicator(id, {.rank = host.rank(), .ranks = host.size(), .device = device}, options, where);
}

/// Makes the communicators of all ranks of one process: rank r is on the r-th of the given devices, for one thread each. They fail together, at
/// once: what one rank throws or aborts reaches the others without a deadline.
/// @param devices  Numbers of CUDA devices, each once.
/// @throws UsageError without devices, or where one does not exist; NcclError; DeadlineError; DeviceError.
/// @par Communication
/// None outside the process.
[[nodiscard]] inline std::vector<NcclCommunicator> nccl_all_devices(std::span<int const> devices, NcclOptions const& options = {},
                                                                    SourceLocation where = SourceLocation::current()) {
  if (devices.empty()) throw UsageError("nccl_all_devices: no devices", where);
  int const ranks = static_cast<int>(devices.size());
  auto const domain = std::make_shared<detail::NcclDomain>();
  std::vector<std::unique_ptr<detail::NcclHandle>> handles;
  for (int rank = 0; rank < ranks; ++rank) {
    NcclPlace place{.rank = rank, .ranks = ranks, .device = devices[static_cast<std::size_t>(rank)]};
    handles.push_back(detail::make_nccl_handle(place, options, domain, where));
  }
  ncclUniqueId id;
  detail::check_nccl("ncclGetUniqueId", ncclGetUniqueId(&id));
  ncclConfig_t config = detail::nccl_config(options);
  std::vector<ncclResult_t> results;
  results.reserve(handles.size());
  cudaError_t device_error = cudaSuccess;
  {
    detail::CudaDeviceGuard const guard(devices[0], where);
    detail::check_nccl("ncclGroupStart", ncclGroupStart());  // Nothing throws before the group's end.
    for (int rank = 0; rank < ranks && device_error == cudaSuccess; ++rank) {
      auto const r = static_cast<std::size_t>(rank);
      device_error = cudaSetDevice(devices[r]);
      if (device_error == cudaSuccess) results.push_back(ncclCommInitRankConfig(handles[r]->slot(), ranks, id, rank, &config));
    }
    if (cudaSetDevice(devices[0]) != cudaSuccess) detail::forget_cuda_error();
  }
  ncclResult_t const end = ncclGroupEnd();  // Also after a failure: the thread would stay inside the group.
  // What failed at once is known to all before any of them waits for the others.
  if (device_error != cudaSuccess) {
    handles[0]->family().fail(std::make_exception_ptr(detail::cuda_error("cudaSetDevice", device_error, where)));
  }
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (results[r] == ncclSuccess || results[r] == ncclInProgress) results[r] = end;
    if (results[r] == ncclSuccess || results[r] == ncclInProgress) continue;
    handles[r]->family().fail(
        std::make_exception_ptr(detail::nccl_error("ncclCommInitRankConfig", results[r], nullptr, static_cast<int>(r))));
  }
  bool failed = device_error != cudaSuccess;
  for (std::size_t r = 0; r < results.size(); ++r) {
    try {
      handles[r]->take("ncclCommInitRankConfig", results[r]);
    } catch (...) {  // The others are taken too, so that they are aborted.
      handles[r]->family().fail(std::current_exception());
      failed = true;
    }
  }
  if (failed) {
    handles.clear();  // The watchdogs have ended: nobody else has the exception.
    std::rethrow_exception(domain->first());
  }
  std::vector<NcclCommunicator> communicators;
  communicators.reserve(handles.size());
  for (auto& handle : handles) communicators.push_back(detail::NcclAccess::make(std::move(handle)));
  return communicators;
}

}  // namespace zero
