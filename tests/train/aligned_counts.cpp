// SPDX-License-Identifier: Apache-2.0
/// @file
/// What reaches the communicator in training: counts and addresses that are multiples of 16 bytes, however odd the sizes and the number of ranks, and
/// what smaller alignments change.

#include <doctest/doctest.h>

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/operations.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>

#include "support/engine.hpp"
#include "support/exact_passes.hpp"
#include "support/odd_layouts.hpp"
#include "support/values.hpp"

namespace {

using namespace zero::test;
using zero::HostStreamRef;
using zero::SourceLocation;
using zero::Subject;
using zero::ThreadCommunicator;

/// What was moved of the model.
struct Seen {
  std::int64_t operations = 0;
  std::int64_t odd_counts = 0;     ///< no multiple of 16 bytes
  std::int64_t odd_addresses = 0;  ///< likewise
};

/// Looks at the operations for parameters, gradients and states, and passes everything on.
class Watching : public zero::Borrowed<ThreadCommunicator> {
public:
  Watching(ThreadCommunicator& inner, Seen& seen) noexcept : Borrowed(inner), seen_(&seen) {}

  template <class Operation>
    requires zero::Performs<ThreadCommunicator, Operation>
  void enqueue(HostStreamRef stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    if constexpr (requires { operation.send; }) {
      Subject const subject = operation.label.subject;
      if (subject == Subject::parameters || subject == Subject::gradients || subject == Subject::optimizer_states) {
        using T = typename Operation::element;
        ++seen_->operations;
        if (operation.count * static_cast<std::int64_t>(sizeof(T)) % 16 != 0) ++seen_->odd_counts;
        for (T const* const address : {static_cast<T const*>(operation.send), static_cast<T const*>(operation.receive)}) {
          if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) ++seen_->odd_addresses;
        }
      }
    }
    Borrowed::enqueue(stream, operation, where);
  }

private:
  Seen* seen_;
};

static_assert(zero::check_communicator<Watching>());

/// Sums that are gathered, scattered and reduced to all.
using Stages = StageList<stage1, stage3, 4>;

/// What a step moves, and what it leaves, on rank 0.
template <class P>
std::pair<Seen, Values> step(StageNumber stage, int ranks, zero::ParameterLayout const& layout, zero::PartitionOptions const& cut) {
  std::pair<Seen, Values> result;
  ModelOptions options{.partition = cut};
  options.optimizer = AnyOptimizer::make_sgd(0.125);
  zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
    Seen seen;
    Watching group(threads, seen);
    HostStreamRef const here = HostStreamRef::calling_thread();
    auto const model = Stages::make<P>(stage, layout, group, zero::Streams<zero::HostDevice>{here, here}, zero::host_memory(), options);
    model->initialize(7, zero::InitialValue::normal(0, 1));
    run_passes(*model, threads.rank(), integer_passes(3, ranks, 2, true));
    static_cast<void>(model->step({}).wait());
    Values const whole = RankValues::whole(*model).values;
    if (threads.rank() == 0) result = {seen, whole};
  });
  return result;
}

template <class P>
void check_counts() {
  Seen with_default, with_small;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::uint64_t const seed : {1u, 2u, 3u}) {
      zero::ParameterLayout const layout = odd_layout(10 * seed + static_cast<std::uint64_t>(ranks));
      for (StageNumber const stage : Stages::all) {
        INFO(ranks, " ranks, ", stage_name(stage), ", layout ", seed);
        auto const [seen, values] = step<P>(stage, ranks, layout, {});
        CHECK(seen.odd_counts == 0);
        CHECK(seen.odd_addresses == 0);
        with_default.operations += seen.operations;
        // Cuts at any element are allowed, and give the same.
        auto const [seen_of_small, values_of_small] = step<P>(stage, ranks, layout, {.shard_alignment = 1, .parameter_alignment = 1});
        with_small.odd_counts += seen_of_small.odd_counts;
        with_small.odd_addresses += seen_of_small.odd_addresses;
        CHECK(differences(values, values_of_small) == 0);
      }
    }
  }
  CHECK(with_default.operations > 100);
  CHECK(with_small.odd_counts > 0);
  CHECK(with_small.odd_addresses > 0);
}

}  // namespace

TEST_CASE("field case 116: all that training moves is in multiples of 16 bytes, at aligned addresses: fp32") {
  check_counts<zero::Precision<float>>();
}
TEST_CASE("field case 116: all that training moves is in multiples of 16 bytes, at aligned addresses: bf16") {
  check_counts<zero::Precision<zero::bf16>>();
}
