// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A small model with a tie and a frozen parameter on two ranks, at several stages, and what ranks say when a check fails on them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <zero/comm/run_ranks.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/sharded_parameters.hpp>

namespace zero::test {

/// Units a and b, which share `weight`; odd sizes.
struct Example {
  ParameterLayout layout;
  Unit a = layout.add_unit("a");
  Unit b = layout.add_unit("b");
  ParameterId weight = layout.add(a, "a.weight", {7, 5});
  ParameterId frozen = layout.add(a, "a.frozen", {3}, {.trainable = false});
  ParameterId bias = layout.add(b, "b.bias", {131});

  Example() { layout.tie(weight, b); }
};

/// Runs `body(parameters, example, wrong)` on two ranks at a stage; `wrong` collects what is wrong.
template <class S, class Body>
void run_stage(Body const& body) {
  std::vector<std::string> wrong(2);
  Example const example;
  run_ranks(2, [&](ThreadCommunicator& comm) {
    auto const here = HostStreamRef::calling_thread();
    auto parameters = shard_parameters<S, Precision<float>>(example.layout, comm, {here, here}, host_memory(), {.poison_released = true});
    parameters.initialize(1, [](ParameterId id) { return InitialValue::constant(static_cast<float>(to_index(id) + 1)); });
    body(parameters, example, wrong[static_cast<std::size_t>(comm.rank())]);
  });
  INFO(std::string(S::name));
  for (std::string const& text : wrong) CHECK(text == "");
}

/// The same where nothing is Sharded, where gradients are, and where everything is.
template <class Body>
void run_stages(Body const& body) {
  run_stage<Stage0>(body);
  run_stage<Stage2>(body);
  run_stage<Stage3>(body);
}

inline void expect(std::string& wrong, bool condition, char const* what) {
  if (!condition) wrong += std::string(what) + "; ";
}

/// The call must throw an E that says `text`.
template <class E = UsageError, class Call>
void expect_refused(std::string& wrong, char const* text, Call&& call) {
  try {
    call();
    wrong += std::string("not refused: ") + text + "; ";
  } catch (E const& error) {
    if (std::string(error.what()).find(text) == std::string::npos) wrong += std::string(error.what()) + "; ";
  }
}

}  // namespace zero::test
