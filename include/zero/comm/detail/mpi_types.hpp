// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Element types, amounts of bytes and reductions as MPI knows them.

#include <zero/comm/mpi_error.hpp>

#include <cstdint>
#include <type_traits>

#include <zero/comm/detail/fixed_order.hpp>
#include <zero/comm/detail/mpi_domain.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>

namespace zero::detail {

/// MPI adds elements of this type as `Sum` says. It has no 16-bit real types; sums that are rounded at each hop are no substitute.
template <class T>
concept MpiAdds = Element<T> && !(RealElement<T> && sizeof(T) < 4);

/// The MPI type with the bits of T. Signed integers are added as unsigned ones: they wrap around.
template <Element T>
[[nodiscard]] MPI_Datatype mpi_type_for_sums() noexcept {
  switch (element_traits<T>::type) {
    case ElementType::fp32: return MPI_FLOAT;
    case ElementType::fp64: return MPI_DOUBLE;
    case ElementType::int8:
    case ElementType::uint8: return MPI_UINT8_T;
    case ElementType::bf16:
    case ElementType::half: return MPI_UINT16_T;
    case ElementType::int32:
    case ElementType::uint32: return MPI_UINT32_T;
    case ElementType::int64:
    case ElementType::uint64: return MPI_UINT64_T;
  }
  return MPI_DATATYPE_NULL;
}

/// Larger elements of two, as `Max` says: MPI_MAX lets a NaN get lost, and knows no 16-bit real types.
template <Element T>
void mpi_max(void* in, void* in_out, int* count, MPI_Datatype*) {
  auto const* const from = static_cast<T const*>(in);
  auto* const to = static_cast<T*>(in_out);
  for (int i = 0; i < *count; ++i) to[i] = static_cast<T>(combine<compute_t<T>>(Max{}, widened(from[i]), widened(to[i])));
}

/// Sums of bytes that wrap around, as `Sum` says: those of Open MPI 4.1 stop at the largest value on processors with instructions for that.
inline void mpi_add_bytes(void* in, void* in_out, int* count, MPI_Datatype*) {
  auto const* const from = static_cast<std::uint8_t const*>(in);
  auto* const to = static_cast<std::uint8_t*>(in_out);
  for (int i = 0; i < *count; ++i) to[i] = static_cast<std::uint8_t>(from[i] + to[i]);
}

/// A reduction that MPI performs; owned where it is ours.
template <class Op, Element T>
class MpiReduction {
public:
  explicit MpiReduction([[maybe_unused]] RankName rank) {
    if constexpr (ours) check_mpi(MPI_Op_create(function, 1, &op_), "MPI_Op_create", rank);
  }
  MpiReduction(MpiReduction const&) = delete;
  MpiReduction& operator=(MpiReduction const&) = delete;
  ~MpiReduction() {
    if constexpr (ours) {
      if (!mpi_has_failed()) MPI_Op_free(&op_);  // After a failure it may still be in use.
    }
  }

  [[nodiscard]] MPI_Op get() const noexcept { return op_; }

private:
  static constexpr bool ours = std::is_same_v<Op, Max> || sizeof(T) == 1;
  static void function(void* in, void* in_out, int* count, MPI_Datatype* type) {
    if constexpr (std::is_same_v<Op, Max>) mpi_max<T>(in, in_out, count, type);
    else mpi_add_bytes(in, in_out, count, type);
  }

  MPI_Op op_ = MPI_SUM;
};

/// What goes from one rank to another, as a count and a type: one of our own where the parts of the ranks do not lie together.
class MpiBytes {
public:
  /// @param bytes  how many; no more than an int counts.
  /// @param stride from one rank's part to the next [bytes].
  MpiBytes(std::int64_t bytes, std::int64_t stride, RankName rank) : count_(static_cast<int>(bytes)) {
    if (stride == bytes) return;
    count_ = 1;
    MPI_Datatype part = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &part), "MPI_Type_contiguous", rank);
    int code = MPI_Type_create_resized(part, 0, static_cast<MPI_Aint>(stride), &type_);
    MPI_Type_free(&part);
    check_mpi(code, "MPI_Type_create_resized", rank);
    code = MPI_Type_commit(&type_);
    if (code != MPI_SUCCESS) MPI_Type_free(&type_);
    check_mpi(code, "MPI_Type_commit", rank);
  }
  MpiBytes(MpiBytes const&) = delete;
  MpiBytes& operator=(MpiBytes const&) = delete;
  ~MpiBytes() {
    if (type_ != MPI_BYTE && !mpi_has_failed()) MPI_Type_free(&type_);  // After a failure it may still be in use.
  }

  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

private:
  int count_;
  MPI_Datatype type_ = MPI_BYTE;
};

}  // namespace zero::detail
