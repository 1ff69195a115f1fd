// SPDX-License-Identifier: Apache-2.0
/// @file
/// The concept Device refuses types that lack something, each by the concept that asks for it.

#include <doctest/doctest.h>

#include <cstdint>

#include <zero/device/device.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/wait_id.hpp>

// Named: clang warns of friends in an unnamed namespace that only a concept needs.
namespace device_test {

/// The least that is a device: nothing happens.
struct Complete {
  struct Stream {
    friend bool operator==(Stream, Stream) = default;
  };
  struct Event {};
  static constexpr char const* name = "none";
  static Event record(Stream) { return {}; }
  static void wait(Stream, Event, zero::WaitId) {}
  static void synchronize(Stream) {}
  static void synchronize(Event) {}
  static void copy(Stream, void*, void const*, std::int64_t) {}
  template <class T>
  static void fill(Stream, T*, std::int64_t, T) {}
  static zero::MemoryResource& pinned_memory() { return zero::host_memory(); }
  static void check_memory(void const*) {}
  template <class F>
  static void for_each(Stream, std::int64_t, F) {}
  template <class F>
  static void accumulate(Stream, std::int64_t, F) {}
  template <class F>
  static void run(Stream, F) {}
};

struct NoStream : Complete {
private:
  using Stream = void;
};
struct OwningStream : Complete {
  struct Stream {
    Stream(Stream const&) {}
    friend bool operator==(Stream const&, Stream const&) = default;
  };
};
struct StreamWithoutEquality : Complete {
  struct Stream {};
};
struct EventThatMustBeRecorded : Complete {
  struct Event {
    explicit Event(int) {}
  };
};
struct NoName : Complete {
private:
  static constexpr int name = 0;
};
struct NoRecord : Complete {
  static void record(Stream) {}
};
struct WaitWithoutId : Complete {
  static void wait(Stream, Event) {}
};
struct NoSynchronizeOfEvents : Complete {
  static void synchronize(Stream) {}
};
struct NoCopy : Complete {
private:
  static void copy() {}
};
struct NoFill : Complete {
private:
  static void fill() {}
};
struct NoPinnedMemory : Complete {
private:
  static void pinned_memory() {}
};
struct NoMemoryCheck : Complete {
private:
  static void check_memory() {}
};
struct NoForEach : Complete {
private:
  static void for_each() {}
};
struct NoAccumulate : Complete {
private:
  static void accumulate() {}
};
struct NoRun : Complete {
private:
  static void run() {}
};

static_assert(zero::check_device<Complete>());
static_assert(zero::check_device<zero::HostDevice>());

static_assert(!zero::HasStreamsAndEvents<int> && !zero::Device<int>);
static_assert(!zero::HasStreamsAndEvents<NoStream> && !zero::Device<NoStream>);
static_assert(!zero::HasStreamsAndEvents<OwningStream> && !zero::Device<OwningStream>);
static_assert(!zero::HasStreamsAndEvents<StreamWithoutEquality> && !zero::Device<StreamWithoutEquality>);
static_assert(!zero::HasStreamsAndEvents<EventThatMustBeRecorded> && !zero::Device<EventThatMustBeRecorded>);
static_assert(!zero::HasStreamsAndEvents<NoName> && !zero::Device<NoName>);
static_assert(zero::HasStreamsAndEvents<NoRecord> && !zero::OrdersStreams<NoRecord> && !zero::Device<NoRecord>);
static_assert(zero::HasStreamsAndEvents<WaitWithoutId> && !zero::OrdersStreams<WaitWithoutId> && !zero::Device<WaitWithoutId>);
static_assert(zero::OrdersStreams<NoSynchronizeOfEvents> && !zero::SynchronizesWithHost<NoSynchronizeOfEvents> &&
              !zero::Device<NoSynchronizeOfEvents>);
static_assert(zero::SynchronizesWithHost<NoCopy> && !zero::CopiesMemory<NoCopy> && !zero::Device<NoCopy>);
static_assert(zero::SynchronizesWithHost<NoFill> && !zero::CopiesMemory<NoFill> && !zero::Device<NoFill>);
static_assert(zero::CopiesMemory<NoPinnedMemory> && !zero::KnowsItsMemory<NoPinnedMemory> && !zero::Device<NoPinnedMemory>);
static_assert(zero::CopiesMemory<NoMemoryCheck> && !zero::KnowsItsMemory<NoMemoryCheck> && !zero::Device<NoMemoryCheck>);
static_assert(zero::CopiesMemory<NoForEach> && !zero::ExecutesFunctors<NoForEach> && !zero::Device<NoForEach>);
static_assert(zero::CopiesMemory<NoAccumulate> && !zero::ExecutesFunctors<NoAccumulate> && !zero::Device<NoAccumulate>);
static_assert(zero::CopiesMemory<NoRun> && !zero::ExecutesFunctors<NoRun> && !zero::Device<NoRun>);

}  // namespace device_test

TEST_CASE("a_device_is_what_has_every_requirement") { CHECK(zero::check_device<device_test::Complete>()); }
