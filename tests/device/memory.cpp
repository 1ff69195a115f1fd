// SPDX-License-Identifier: Apache-2.0
/// @file
/// Memory resources and buffers.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/core/element.hpp>
#include <zero/device/memory.hpp>

// The sanitizers' allocators end the process at absurd sizes unless told to refuse like the system's.
extern "C" char const* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" char const* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace {

using zero::Buffer;
using zero::Purpose;

static_assert(!std::is_copy_constructible_v<Buffer<float>> && !std::is_copy_assignable_v<Buffer<float>>);
static_assert(std::is_nothrow_move_constructible_v<Buffer<float>> && std::is_nothrow_move_assignable_v<Buffer<float>>);
static_assert(std::is_nothrow_destructible_v<Buffer<float>>);
static_assert(!std::is_copy_constructible_v<zero::HostMemory>);
static_assert(zero::name(static_cast<Purpose>(zero::purpose_count - 1)) != nullptr);

/// Keeps what it hands out, so that a test can look at what came back.
class KeepingResource final : public zero::MemoryResource {
public:
  void* allocate(std::int64_t bytes, Purpose) override {
    blocks.emplace_back(static_cast<std::size_t>(bytes), std::byte{0x11});
    return blocks.back().data();
  }
  void deallocate(void*, std::int64_t, Purpose) noexcept override { ++returned; }

  std::vector<std::vector<std::byte>> blocks;
  int returned = 0;
};

bool holds_only(std::vector<std::byte> const& block, std::byte value) {
  for (std::byte const b : block) {
    if (b != value) return false;
  }
  return true;
}

template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (E const& error) {
    return error.what();
  }
  return "";
}

bool contains(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("names_every_purpose_differently") {
  for (int a = 0; a < zero::purpose_count; ++a) {
    CHECK(std::string(zero::name(static_cast<Purpose>(a))) != "unknown purpose");
    for (int b = 0; b < a; ++b) CHECK(std::string(zero::name(static_cast<Purpose>(a))) != zero::name(static_cast<Purpose>(b)));
  }
  CHECK(std::string(zero::name(static_cast<Purpose>(zero::purpose_count))) == "unknown purpose");
}

TEST_CASE("host_memory_is_aligned_to_256_bytes") {
  for (std::int64_t const bytes : {std::int64_t{1}, std::int64_t{3}, std::int64_t{255}, std::int64_t{257}, std::int64_t{1} << 20}) {
    void* const block = zero::host_memory().allocate(bytes, Purpose::staging);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 256 == 0);
    std::memset(block, 1, static_cast<std::size_t>(bytes));
    zero::HostMemory other;  // any two are the same resource
    other.deallocate(block, bytes, Purpose::staging);
  }
}

TEST_CASE("zero_bytes_are_a_null_pointer_through_every_adaptor") {
  zero::CountingResource counting{zero::host_memory()};
  zero::LimitedResource limited{counting, 0};
  zero::FailingResource failing{limited, 1, zero::FailureMode::from_then_on};
  zero::PoisoningResource poisoning{failing};
  void* const block = poisoning.allocate(0, Purpose::control);
  CHECK(block == nullptr);
  poisoning.deallocate(block, 0, Purpose::control);
  CHECK(counting.allocations() == 0);
  CHECK(failing.calls() == 0);
}

TEST_CASE("memory_that_the_system_refuses_is_a_memory_error_with_bytes_and_purpose") {
  std::int64_t const absurd = std::int64_t{1} << 62;
  try {
    zero::host_memory().deallocate(zero::host_memory().allocate(absurd, Purpose::gathered), absurd, Purpose::gathered);
    CHECK_MESSAGE(false, "the system had 4 EiB");
  } catch (zero::MemoryError const& error) {
    CHECK(error.bytes() == absurd);
    CHECK(contains(error.what(), "4611686018427387904 bytes"));
    CHECK(contains(error.what(), "gathered parameters"));
  }
  CHECK_THROWS_AS((void)zero::host_memory().allocate(-1, Purpose::gathered), zero::MemoryError);
}

TEST_CASE("counts_live_and_peak_bytes_per_purpose") {
  zero::CountingResource counting{zero::host_memory()};
  {
    Buffer<float> const parameters{counting, 10, Purpose::parameters};
    CHECK(counting.live(Purpose::parameters) == 40);
    {
      Buffer<zero::bf16> const gradients{counting, 3, Purpose::gradients};
      CHECK(counting.live(Purpose::gradients) == 6);
      CHECK(counting.live() == 46);
    }
    Buffer<double> const more{counting, 1, Purpose::parameters};
    CHECK(counting.live(Purpose::parameters) == 48);
    CHECK(counting.live(Purpose::gradients) == 0);
    CHECK(counting.live() == 48);
  }
  CHECK(counting.live() == 0);
  CHECK(counting.peak(Purpose::parameters) == 48);
  CHECK(counting.peak(Purpose::gradients) == 6);
  CHECK(counting.peak(Purpose::staging) == 0);
  CHECK(counting.allocations() == 3);
}

TEST_CASE("the_total_peak_is_the_peak_of_the_sum") {
  zero::CountingResource counting{zero::host_memory()};
  { Buffer<std::uint8_t> const a{counting, 100, Purpose::gathered}; }
  { Buffer<std::uint8_t> const b{counting, 70, Purpose::staging}; }
  CHECK(counting.peak(Purpose::gathered) == 100);
  CHECK(counting.peak(Purpose::staging) == 70);
  CHECK(counting.peak() == 100);
}

TEST_CASE("reset_peaks_starts_again_at_what_is_live") {
  zero::CountingResource counting{zero::host_memory()};
  Buffer<std::uint8_t> const kept{counting, 7, Purpose::gathered};
  { Buffer<std::uint8_t> const b{counting, 70, Purpose::gathered}; }
  counting.reset_peaks();
  CHECK(counting.peak(Purpose::gathered) == 7);
  CHECK(counting.peak() == 7);
}

TEST_CASE("a_refused_allocation_is_not_counted") {
  zero::LimitedResource limited{zero::host_memory(), 10};
  zero::CountingResource counting{limited};
  CHECK_THROWS_AS((void)counting.allocate(11, Purpose::staging), zero::MemoryError);
  CHECK(counting.live() == 0);
  CHECK(counting.peak() == 0);
  CHECK(counting.allocations() == 0);
}

TEST_CASE("counts_exactly_with_many_threads") {
  zero::CountingResource counting{zero::host_memory()};
  constexpr int threads = 4;
  constexpr int rounds = 500;
  {
    std::vector<std::thread> crowd;
    for (int t = 0; t < threads; ++t) {
      crowd.emplace_back([&counting, t] {
        Purpose const purpose = t % 2 == 0 ? Purpose::parameters : Purpose::gradients;
        for (int i = 0; i < rounds; ++i) {
          Buffer<std::uint8_t> const a{counting, 8, purpose};
          Buffer<std::uint8_t> const b{counting, 8, purpose};
        }
      });
    }
    for (std::thread& thread : crowd) thread.join();
  }
  CHECK(counting.live() == 0);
  CHECK(counting.live(Purpose::parameters) == 0);
  CHECK(counting.allocations() == 2 * threads * rounds);
  CHECK(counting.peak() >= 16);
  CHECK(counting.peak() <= 16 * threads);
  CHECK(counting.peak(Purpose::parameters) >= 16);
  CHECK(counting.peak(Purpose::parameters) <= 8 * threads);
}

TEST_CASE("a_limit_allows_the_last_byte_and_names_itself_beyond_it") {
  zero::LimitedResource limited{zero::host_memory(), 100};
  Buffer<std::uint8_t> first{limited, 60, Purpose::parameters};
  { Buffer<std::uint8_t> const fits{limited, 40, Purpose::gathered}; }
  std::string const message = message_of<zero::MemoryError>([&] {
    Buffer<std::uint8_t> const excess{limited, 41, Purpose::optimizer_states};
  });
  CHECK(contains(message, "41 bytes"));
  CHECK(contains(message, "optimizer states"));
  CHECK(contains(message, "100 bytes"));
  CHECK(contains(message, "60 are in use"));
  CHECK(limited.live() == 60);
  first.reset();
  CHECK(limited.live() == 0);
  Buffer<std::uint8_t> const whole{limited, 100, Purpose::gathered};
  CHECK(whole.size() == 100);
}

TEST_CASE("a_limit_is_not_used_up_by_what_upstream_refuses") {
  zero::FailingResource failing{zero::host_memory(), 1};
  zero::LimitedResource limited{failing, 100};
  CHECK_THROWS_AS((void)limited.allocate(100, Purpose::staging), zero::MemoryError);
  Buffer<std::uint8_t> const whole{limited, 100, Purpose::staging};
  CHECK(limited.live() == 100);
}

TEST_CASE("fails_at_the_nth_call_counted_from_one") {
  for (std::int64_t n = 1; n <= 3; ++n) {
    for (zero::FailureMode const mode : {zero::FailureMode::once, zero::FailureMode::from_then_on}) {
      zero::FailingResource failing{zero::host_memory(), n, mode};
      for (std::int64_t call = 1; call <= 4; ++call) {
        bool const expected = call == n || (mode == zero::FailureMode::from_then_on && call > n);
        std::string const message = message_of<zero::MemoryError>([&] { Buffer<float> const b{failing, 2, Purpose::staging}; });
        CHECK(message.empty() != expected);
        if (expected) {
          CHECK(contains(message, "8 bytes for staging"));
          CHECK(contains(message, ("allocation " + std::to_string(call)).c_str()));
        }
      }
      CHECK(failing.calls() == 4);
    }
  }
}

TEST_CASE("never_fails_at_call_zero") {
  zero::FailingResource failing{zero::host_memory(), 0, zero::FailureMode::from_then_on};
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(Buffer<float>(failing, 1, Purpose::staging));
}

TEST_CASE("poisoned_memory_is_nan_in_every_floating_point_type") {
  zero::PoisoningResource poisoning{zero::host_memory()};
  Buffer<float> const f{poisoning, 3, Purpose::gathered};
  Buffer<double> const d{poisoning, 3, Purpose::gathered};
  Buffer<zero::bf16> const b{poisoning, 3, Purpose::gathered};
  Buffer<zero::half> const h{poisoning, 3, Purpose::gathered};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(std::isnan(f.span()[i]));
    CHECK(std::isnan(d.span()[i]));
    CHECK(std::isnan(static_cast<float>(b.span()[i])));
    CHECK(std::isnan(static_cast<float>(h.span()[i])));
  }
}

TEST_CASE("field case 48: freed memory is poisoned before it is recycled") {
  KeepingResource keeping;
  zero::PoisoningResource poisoning{keeping};
  {
    Buffer<std::uint8_t> buffer{poisoning, 33, Purpose::gathered};
    CHECK(holds_only(keeping.blocks[0], std::byte{0xff}));
    for (std::uint8_t& element : buffer.span()) element = 5;
    CHECK(holds_only(keeping.blocks[0], std::byte{5}));
  }
  CHECK(keeping.returned == 1);
  CHECK(holds_only(keeping.blocks[0], std::byte{0xff}));
}

TEST_CASE("a_buffer_of_no_elements_holds_nothing") {
  zero::CountingResource counting{zero::host_memory()};
  Buffer<float> const none{counting, 0, Purpose::parameters};
  Buffer<float> const unmade;
  CHECK(none.data() == nullptr);
  CHECK(none.empty());
  CHECK(none.bytes() == 0);
  CHECK(unmade.size() == 0);
  CHECK(counting.allocations() == 0);
}

TEST_CASE("a_moved_buffer_keeps_its_block_and_leaves_an_empty_one") {
  zero::CountingResource counting{zero::host_memory()};
  Buffer<float> a{counting, 4, Purpose::parameters};
  float* const block = a.data();
  a.span()[3] = 7;
  Buffer<float> b{std::move(a)};
  CHECK(b.data() == block);
  CHECK(b.size() == 4);
  CHECK(b.bytes() == 16);
  CHECK(b.purpose() == Purpose::parameters);
  CHECK(a.data() == nullptr);  // NOLINT(bugprone-use-after-move): what is left is specified
  CHECK(a.size() == 0);
  Buffer<float> c{counting, 2, Purpose::gradients};
  c = std::move(b);
  CHECK(c.data() == block);
  CHECK(c.span()[3] == 7);
  CHECK(counting.live(Purpose::gradients) == 0);
  CHECK(counting.live(Purpose::parameters) == 16);
  Buffer<float>& same = c;
  c = std::move(same);
  CHECK(c.data() == block);
  c.reset();
  CHECK(counting.live() == 0);
  c.reset();
  CHECK(counting.live() == 0);
}

TEST_CASE("refuses_sizes_beyond_63_bits_and_negative_ones") {
  std::int64_t const most = std::numeric_limits<std::int64_t>::max();
  std::string const message = message_of<zero::MemoryError>([&] {
    Buffer<double> const b{zero::host_memory(), most / 4, Purpose::gathered};
  });
  CHECK(contains(message, "2305843009213693951 elements of 8 bytes"));
  CHECK(contains(message, "gathered parameters"));
  try {
    Buffer<double> const b{zero::host_memory(), -3, Purpose::gathered};
    CHECK(false);
  } catch (zero::UsageError const& error) {
    CHECK(contains(error.what(), "-3 elements"));
    CHECK(contains(error.where().file, "memory.cpp"));
  }
}
