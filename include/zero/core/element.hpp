// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Element types: bf16 and half as 2-byte structs, and the open trait that tells the library what an element type is.

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <zero/core/config.hpp>

namespace zero {

namespace detail {

ZERO_HOST_DEVICE constexpr std::uint16_t bf16_bits(float value) noexcept {
  std::uint32_t const bits = __builtin_bit_cast(std::uint32_t, value);
  // Branch-free and in 32-bit operations that every vector unit has: round to nearest even, and keep NaN a quiet NaN with its sign.
  std::uint32_t const nan = static_cast<std::uint32_t>(static_cast<std::int32_t>(0x7f800000u - (bits & 0x7fffffffu)) >> 31);  // all ones
  std::uint32_t const up = (0x7fffu + ((bits >> 16) & 1u)) & ~nan;
  return static_cast<std::uint16_t>(((bits + up) | (nan & 0x00400000u)) >> 16);
}

ZERO_HOST_DEVICE constexpr float bf16_value(std::uint16_t bits) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

// Branch-free as well: every case is computed, then one is selected.
ZERO_HOST_DEVICE constexpr std::uint16_t half_bits(float value) noexcept {
  std::uint32_t const bits = __builtin_bit_cast(std::uint32_t, value);
  std::uint32_t const sign = (bits >> 16) & 0x8000u;
  std::uint32_t const magnitude = bits & 0x7fffffffu;
  std::uint32_t const quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  std::uint32_t const normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // The last place of numbers around 0.5 is the least denormal of half: the addition rounds there.
  std::uint32_t const denormal = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t const finite = magnitude < 0x38800000u ? denormal : normal;
  std::uint32_t const number = magnitude >= 0x477ff000u ? 0x7c00u : finite;  // rounds to 2^16 or more
  return static_cast<std::uint16_t>(sign | (magnitude > 0x7f800000u ? quiet_nan : number));
}

ZERO_HOST_DEVICE constexpr float half_value(std::uint16_t bits) noexcept {
  std::uint32_t const sign = (static_cast<std::uint32_t>(bits) & 0x8000u) << 16;
  std::uint32_t const magnitude = bits & 0x7fffu;
  std::uint32_t const special = 0x7f800000u | (magnitude << 13);  // infinity and NaN
  std::uint32_t const normal = (magnitude << 13) + 0x38000000u;
  // An integer times the least denormal; the conversion of an int is what vector units have.
  std::uint32_t const denormal = __builtin_bit_cast(std::uint32_t, static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  std::uint32_t const finite = magnitude < 0x400u ? denormal : normal;
  return __builtin_bit_cast(float, sign | (magnitude >= 0x7c00u ? special : finite));
}

}  // namespace detail

/// Brain floating point: the upper 16 bits of an fp32 number (8 bits of significand). Conversion from float rounds to nearest even.
/// It is a storage type: compute in float.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  ZERO_HOST_DEVICE constexpr explicit bf16(float value) noexcept : bits(detail::bf16_bits(value)) {}
  ZERO_HOST_DEVICE constexpr explicit operator float() const noexcept { return detail::bf16_value(bits); }

  ZERO_HOST_DEVICE static constexpr bf16 from_bits(std::uint16_t bits) noexcept {
    bf16 result;
    result.bits = bits;
    return result;
  }
};

/// IEEE 754 binary16: 11 bits of significand, largest finite value 65504. Conversion from float rounds to nearest even.
/// It is a storage type: compute in float.
struct half {
  std::uint16_t bits = 0;

  half() = default;
  ZERO_HOST_DEVICE constexpr explicit half(float value) noexcept : bits(detail::half_bits(value)) {}
  ZERO_HOST_DEVICE constexpr explicit operator float() const noexcept { return detail::half_value(bits); }

  ZERO_HOST_DEVICE static constexpr half from_bits(std::uint16_t bits) noexcept {
    half result;
    result.bits = bits;
    return result;
  }
};

/// Names an element type at run time: in fingerprints that ranks compare, in messages, later in files.
enum class ElementType : std::uint8_t { fp32, fp64, bf16, half, int8, uint8, int32, uint32, int64, uint64 };

/// What the library must know of an element type. Specialise it for a type of your own with the layout of a known one (for instance
/// `__nv_bfloat16`): `type`, `name`, and `compute`, the type in which sums are formed (float for 16-bit types, else the type itself).
template <class T>
struct element_traits;

namespace detail {

[[nodiscard]] constexpr char const* element_name(ElementType type) noexcept {
  constexpr char const* names[] = {"fp32", "fp64", "bf16", "half", "int8", "uint8", "int32", "uint32", "int64", "uint64"};
  auto const number = static_cast<unsigned>(type);
  return number < sizeof(names) / sizeof(names[0]) ? names[number] : "elements";
}

template <ElementType Type, class Compute>
struct ElementTraits {
  static constexpr ElementType type = Type;
  static constexpr char const* name = element_name(Type);
  using compute = Compute;
};

}  // namespace detail

// clang-format off
template <> struct element_traits<float> : detail::ElementTraits<ElementType::fp32, float> {};
template <> struct element_traits<double> : detail::ElementTraits<ElementType::fp64, double> {};
template <> struct element_traits<bf16> : detail::ElementTraits<ElementType::bf16, float> {};
template <> struct element_traits<half> : detail::ElementTraits<ElementType::half, float> {};
template <> struct element_traits<std::int8_t> : detail::ElementTraits<ElementType::int8, std::int8_t> {};
template <> struct element_traits<std::uint8_t> : detail::ElementTraits<ElementType::uint8, std::uint8_t> {};
template <> struct element_traits<std::int32_t> : detail::ElementTraits<ElementType::int32, std::int32_t> {};
template <> struct element_traits<std::uint32_t> : detail::ElementTraits<ElementType::uint32, std::uint32_t> {};
template <> struct element_traits<std::int64_t> : detail::ElementTraits<ElementType::int64, std::int64_t> {};
template <> struct element_traits<std::uint64_t> : detail::ElementTraits<ElementType::uint64, std::uint64_t> {};
// clang-format on

/// A type that collectives can move and add: trivially copyable, with `element_traits`.
template <class T>
concept Element = std::is_trivially_copyable_v<T> && requires {
  { element_traits<T>::type } -> std::convertible_to<ElementType>;
  { element_traits<T>::name } -> std::convertible_to<char const*>;
  typename element_traits<T>::compute;
};

/// An element type of real numbers: what parameters, gradients and optimizer states are made of.
template <class T>
concept RealElement = Element<T> && std::is_floating_point_v<typename element_traits<T>::compute>;

/// The type in which values of type T are added: float for 16-bit types, T itself otherwise.
template <Element T>
using compute_t = typename element_traits<T>::compute;

namespace detail {

/// A float between which and the fp64 number no 16-bit number or midpoint of two lies: rounding it gives what rounding the number would.
ZERO_HOST_DEVICE constexpr float rounded_to_odd(double value) noexcept {
  float const nearest = static_cast<float>(value);
  constexpr std::uint64_t without_sign = 0x7fffffffffffffffu;
  std::uint64_t const exact = __builtin_bit_cast(std::uint64_t, value) & without_sign;
  std::uint64_t const rounded = __builtin_bit_cast(std::uint64_t, static_cast<double>(nearest)) & without_sign;
  if (rounded == exact || exact > 0x7ff0000000000000u) return nearest;
  std::uint32_t bits = __builtin_bit_cast(std::uint32_t, nearest);
  if (rounded > exact) --bits;  // towards zero
  return __builtin_bit_cast(float, bits | 1u);
}

}  // namespace detail

/// Converts between element types through the types they compute in; rounds to nearest even once.
template <Element To, Element From>
ZERO_HOST_DEVICE constexpr To element_cast(From value) noexcept {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<compute_t<From>, double> && std::is_same_v<compute_t<To>, float> && !std::is_same_v<To, float>) {
    return static_cast<To>(detail::rounded_to_odd(static_cast<double>(value)));
  } else {
    return static_cast<To>(static_cast<compute_t<To>>(static_cast<compute_t<From>>(value)));
  }
}

}  // namespace zero
