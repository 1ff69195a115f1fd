// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The sums of one `ncclComm_t` that multiply their addends with a factor.

#include <nccl.h>

#include <vector>

namespace zero::detail {

/// Each is made once for a type and a factor, inside an `NcclUse` of the communicator, and ends with it.
class NcclReductions {
public:
  /// @return what NCCL says.
  template <class T>
  [[nodiscard]] ncclResult_t find(ncclComm_t comm, ncclDataType_t type, T factor, float key, ncclRedOp_t& op) {
    for (Reduction const& known : known_) {
      if (known.type != type || known.factor != key) continue;
      op = known.op;
      return ncclSuccess;
    }
    known_.reserve(known_.size() + 1);
    ncclResult_t const result = ncclRedOpCreatePreMulSum(&op, &factor, type, ncclScalarHostImmediate, comm);
    if (result == ncclSuccess || result == ncclInProgress) known_.push_back({type, key, op});
    return result;
  }

  /// For a communicator that lives on.
  void forget(ncclComm_t comm) noexcept {
    for (Reduction const& r : known_) static_cast<void>(ncclRedOpDestroy(r.op, comm));
    known_.clear();
  }

private:
  struct Reduction {
    ncclDataType_t type;
    float factor;
    ncclRedOp_t op;
  };

  std::vector<Reduction> known_;
};

}  // namespace zero::detail
