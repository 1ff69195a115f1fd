// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Memory resources, which say what each byte is for, and `Buffer`, the owner of an array from one of them.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <zero/core/error.hpp>

namespace zero {

/// What memory is for. The library's memory contract is stated, planned and tested per purpose.
enum class Purpose : std::uint8_t {
  parameters,        ///< The parameters in the element type the model computes with.
  gradients,         ///< Gradients where they accumulate between micro-batches.
  optimizer_states,  ///< Masters and the optimizer's states.
  gathered,          ///< Whole parameters of units that are in use.
  gradient_scratch,  ///< Whole gradients of open scopes and of reductions in flight.
  staging,           ///< Converted or copied data on its way into or out of a collective.
  control,           ///< A few bytes for norms, checks, hashes and step counts.
};

/// How many purposes there are.
inline constexpr int purpose_count = 7;

/// The purpose in words, for messages.
[[nodiscard]] constexpr char const* name(Purpose purpose) noexcept {
  switch (purpose) {
    case Purpose::parameters: return "parameters";
    case Purpose::gradients: return "gradients";
    case Purpose::optimizer_states: return "optimizer states";
    case Purpose::gathered: return "gathered parameters";
    case Purpose::gradient_scratch: return "gradient scratch";
    case Purpose::staging: return "staging";
    case Purpose::control: return "control";
  }
  return "unknown purpose";
}

/// The alignment of every block a resource hands out [bytes].
inline constexpr std::int64_t memory_alignment = 256;

/// Where the library gets memory from: derive from it to plug in an allocator of your own.
///
/// What the syntax does not say: blocks are aligned to `memory_alignment`; 0 bytes give a null pointer, and a null pointer may be given
/// back with 0 bytes; contents are undefined; a block goes back to the resource it came from, with the same size and purpose; calls may
/// come from several threads at once; the library allocates when an object is constructed and in the first pass, or in
/// `ShardedParameters::reserve` before it, never in the steady state.
class MemoryResource {
public:
  MemoryResource() = default;
  MemoryResource(MemoryResource const&) = delete;
  MemoryResource& operator=(MemoryResource const&) = delete;
  virtual ~MemoryResource() = default;

  /// A block of `bytes` [bytes] for this purpose.
  /// @throws MemoryError where it cannot be had; nothing was changed then.
  [[nodiscard]] virtual void* allocate(std::int64_t bytes, Purpose purpose) = 0;

  /// Takes back a block of `bytes` [bytes] that `allocate` returned for this purpose.
  virtual void deallocate(void* block, std::int64_t bytes, Purpose purpose) noexcept = 0;
};

namespace detail {

[[noreturn]] inline void throw_memory_error(std::int64_t bytes, Purpose purpose, std::string const& reason) {
  throw MemoryError("cannot allocate " + std::to_string(bytes) + " bytes for " + name(purpose) + ": " + reason, bytes);
}

inline void raise_to(std::atomic<std::int64_t>& peak, std::int64_t value) noexcept {
  std::int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace detail

/// The host's heap. It has no state: any two are the same resource.
class HostMemory final : public MemoryResource {
public:
  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    if (bytes == 0) return nullptr;
    if (bytes < 0) detail::throw_memory_error(bytes, purpose, "a negative size");
    void* const block = ::operator new(static_cast<std::size_t>(bytes), alignment, std::nothrow);
    if (block == nullptr) detail::throw_memory_error(bytes, purpose, "the system has no more memory");
    return block;
  }

  void deallocate(void* block, std::int64_t, Purpose) noexcept override { ::operator delete(block, alignment); }

private:
  static constexpr std::align_val_t alignment{static_cast<std::size_t>(memory_alignment)};
};

/// The host's heap as one object that lives as long as the program.
[[nodiscard]] inline MemoryResource& host_memory() noexcept {
  // Never destroyed, so that owners with static storage may still give memory back.
  alignas(HostMemory) static std::byte storage[sizeof(HostMemory)];
  static HostMemory* const resource = ::new (static_cast<void*>(storage)) HostMemory;
  return *resource;
}

/// Counts the bytes that pass through, per purpose: the memory contract is asserted with it.
/// The counters are exact with any number of threads; `upstream` must outlive the resource.
class CountingResource final : public MemoryResource {
public:
  explicit CountingResource(MemoryResource& upstream) noexcept : upstream_(upstream) {}

  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    void* const block = upstream_.allocate(bytes, purpose);
    if (block != nullptr) {
      allocations_.fetch_add(1, std::memory_order_relaxed);
      add(of(purpose), bytes);
      add(total_, bytes);
    }
    return block;
  }

  void deallocate(void* block, std::int64_t bytes, Purpose purpose) noexcept override {
    if (block != nullptr) {
      of(purpose).live.fetch_sub(bytes, std::memory_order_relaxed);
      total_.live.fetch_sub(bytes, std::memory_order_relaxed);
    }
    upstream_.deallocate(block, bytes, purpose);
  }

  /// Bytes now allocated for one purpose [bytes].
  [[nodiscard]] std::int64_t live(Purpose purpose) const noexcept { return of(purpose).live.load(std::memory_order_relaxed); }
  /// Bytes now allocated for all purposes together [bytes].
  [[nodiscard]] std::int64_t live() const noexcept { return total_.live.load(std::memory_order_relaxed); }
  /// The most bytes that were live for one purpose at a time [bytes].
  [[nodiscard]] std::int64_t peak(Purpose purpose) const noexcept { return of(purpose).peak.load(std::memory_order_relaxed); }
  /// The most bytes that were live for all purposes together: the peak of the sum, not the sum of the peaks [bytes].
  [[nodiscard]] std::int64_t peak() const noexcept { return total_.peak.load(std::memory_order_relaxed); }
  /// How many blocks were ever allocated: equal before and after a step means that the step allocated nothing.
  [[nodiscard]] std::int64_t allocations() const noexcept { return allocations_.load(std::memory_order_relaxed); }

  /// Lets every peak start again at what is live now. To be called while no other thread allocates.
  void reset_peaks() noexcept {
    for (Counters& counters : purposes_) counters.peak.store(counters.live.load(std::memory_order_relaxed), std::memory_order_relaxed);
    total_.peak.store(live(), std::memory_order_relaxed);
  }

private:
  struct Counters {
    std::atomic<std::int64_t> live = 0;
    std::atomic<std::int64_t> peak = 0;
  };

  static void add(Counters& counters, std::int64_t bytes) noexcept {
    detail::raise_to(counters.peak, counters.live.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  }

  Counters& of(Purpose purpose) noexcept { return purposes_[static_cast<std::size_t>(purpose)]; }
  Counters const& of(Purpose purpose) const noexcept { return purposes_[static_cast<std::size_t>(purpose)]; }

  MemoryResource& upstream_;
  std::array<Counters, static_cast<std::size_t>(purpose_count)> purposes_;
  Counters total_;
  std::atomic<std::int64_t> allocations_ = 0;
};

/// Refuses to have more than a number of bytes live at a time: a budget, or a small device in a test.
/// Thread-safe; `upstream` must outlive the resource.
class LimitedResource final : public MemoryResource {
public:
  /// @param limit_bytes the most bytes that may be live at a time [bytes].
  LimitedResource(MemoryResource& upstream, std::int64_t limit_bytes) noexcept : upstream_(upstream), limit_bytes_(limit_bytes) {}

  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    std::int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_bytes_ - used) {
        detail::throw_memory_error(
            bytes, purpose, "the limit is " + std::to_string(limit_bytes_) + " bytes, of which " + std::to_string(used) + " are in use");
      }
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    try {
      return upstream_.allocate(bytes, purpose);
    } catch (...) {
      used_.fetch_sub(bytes, std::memory_order_relaxed);
      throw;
    }
  }

  void deallocate(void* block, std::int64_t bytes, Purpose purpose) noexcept override {
    upstream_.deallocate(block, bytes, purpose);
    used_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  /// Bytes now allocated [bytes].
  [[nodiscard]] std::int64_t live() const noexcept { return used_.load(std::memory_order_relaxed); }

private:
  MemoryResource& upstream_;
  std::int64_t limit_bytes_;
  std::atomic<std::int64_t> used_ = 0;
};

/// How long a `FailingResource` fails once it has begun to.
enum class FailureMode : std::uint8_t {
  once,          ///< Only the n-th call fails.
  from_then_on,  ///< The n-th call and all calls after it fail.
};

/// Fails at a chosen call: a test walks n through every allocation of a constructor and checks that nothing is lost on the way out.
/// Calls for 0 bytes allocate nothing and are not counted. Thread-safe; `upstream` must outlive the resource.
class FailingResource final : public MemoryResource {
public:
  /// @param failing_call which call of `allocate` throws MemoryError, counted from 1; 0: none does.
  FailingResource(MemoryResource& upstream, std::int64_t failing_call, FailureMode mode = FailureMode::once) noexcept
      : upstream_(upstream), failing_call_(failing_call), mode_(mode) {}

  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    if (bytes == 0) return upstream_.allocate(bytes, purpose);
    std::int64_t const call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    bool const fails = call == failing_call_ || (mode_ == FailureMode::from_then_on && failing_call_ > 0 && call > failing_call_);
    if (fails) detail::throw_memory_error(bytes, purpose, "allocation " + std::to_string(call) + " was made to fail by a test");
    return upstream_.allocate(bytes, purpose);
  }

  void deallocate(void* block, std::int64_t bytes, Purpose purpose) noexcept override { upstream_.deallocate(block, bytes, purpose); }

  /// How many calls were counted so far.
  [[nodiscard]] std::int64_t calls() const noexcept { return calls_.load(std::memory_order_relaxed); }

private:
  MemoryResource& upstream_;
  std::int64_t failing_call_;
  FailureMode mode_;
  std::atomic<std::int64_t> calls_ = 0;
};

/// Fills blocks with 0xFF bytes, which are NaN in every floating-point element type, when they are handed out and when they come back:
/// what is read before it is written, or after it was freed, shows in the loss. The memory must be accessible to the host, and what comes
/// back must not be in use by a stream any more. `upstream` must outlive the resource.
class PoisoningResource final : public MemoryResource {
public:
  explicit PoisoningResource(MemoryResource& upstream) noexcept : upstream_(upstream) {}

  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    void* const block = upstream_.allocate(bytes, purpose);
    poison(block, bytes);
    return block;
  }

  void deallocate(void* block, std::int64_t bytes, Purpose purpose) noexcept override {
    poison(block, bytes);
    upstream_.deallocate(block, bytes, purpose);
  }

private:
  static void poison(void* block, std::int64_t bytes) noexcept {
    if (block != nullptr) std::memset(block, 0xff, static_cast<std::size_t>(bytes));
  }

  MemoryResource& upstream_;
};

/// Owns an array from a memory resource. The elements are not initialised; copying is explicit (`Device::copy`).
///
/// @par Memory
/// `size * sizeof(T)` bytes under the purpose it was made for, from construction to destruction, move-assignment or `reset()`. A buffer of
/// 0 elements holds nothing. The resource must outlive it, and work queued on streams that uses it must have been waited for.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>, "zero: a Buffer's elements are moved by collectives and copied as bytes");
  static_assert(alignof(T) <= static_cast<std::size_t>(memory_alignment), "zero: memory resources do not align this much");

public:
  using value_type = T;

  /// An empty buffer.
  Buffer() = default;

  /// @param size number of elements.
  /// @throws UsageError for a negative size.
  /// @throws MemoryError where the resource has no such block or its size in bytes exceeds 63 bits.
  Buffer(MemoryResource& resource, std::int64_t size, Purpose purpose, SourceLocation where = SourceLocation::current())
      : resource_(&resource), size_(size), purpose_(purpose) {
    if (size < 0) throw UsageError("a buffer of " + std::to_string(size) + " elements for " + name(purpose), where);
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    if (size > largest / element_bytes) {
      throw MemoryError("cannot allocate " + std::to_string(size) + " elements of " + std::to_string(element_bytes) + " bytes for " +
                            name(purpose) + ": the size in bytes exceeds 63 bits",
                        largest);
    }
    if (size > 0) data_ = static_cast<T*>(resource.allocate(size * element_bytes, purpose));
  }

  Buffer(Buffer&& other) noexcept { swap(other); }

  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }

  ~Buffer() { reset(); }

  /// The first element, null if the buffer is empty.
  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }

  /// Number of elements.
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// Size [bytes].
  [[nodiscard]] std::int64_t bytes() const noexcept { return size_ * element_bytes; }
  /// True if it holds nothing.
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// What the memory is for.
  [[nodiscard]] Purpose purpose() const noexcept { return purpose_; }

  /// The elements; to be touched by the host only where the resource gives memory it can access.
  [[nodiscard]] std::span<T> span() noexcept { return {data_, static_cast<std::size_t>(size_)}; }
  [[nodiscard]] std::span<T const> span() const noexcept { return {data_, static_cast<std::size_t>(size_)}; }

  /// Gives the memory back at once.
  void reset() noexcept {
    if (data_ != nullptr) resource_->deallocate(data_, bytes(), purpose_);
    data_ = nullptr;
    size_ = 0;
  }

  void swap(Buffer& other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(purpose_, other.purpose_);
  }

private:
  static constexpr std::int64_t element_bytes = static_cast<std::int64_t>(sizeof(T));

  MemoryResource* resource_ = nullptr;
  T* data_ = nullptr;
  std::int64_t size_ = 0;
  Purpose purpose_ = Purpose::control;
};

}  // namespace zero
