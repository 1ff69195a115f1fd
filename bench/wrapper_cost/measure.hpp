// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Calls a function of a library, or what zero makes of it, many times inside the function `measured`, whose instructions run counts.

#include <cstddef>
#include <cstdio>
#include <string>

namespace bench {

constexpr int calls = 1000;

/// What is called, both ways, on objects that are made once.
template <class Objects>
struct Case {
  char const* name;
  void (*raw)(Objects&);
  void (*zero)(Objects&);
};

}  // namespace bench

extern "C" [[gnu::noinline]] inline void measured(void (*work)(void*), void* data) {
  for (int i = 0; i < bench::calls; ++i) work(data);
}

namespace bench {

/// `<program> <name> raw|zero|nothing`, or `list names`.
/// @param settle  called between as many calls that are not counted and those that are
template <class Objects, std::size_t N, class Settle>
int measure(int argc, char** argv, Case<Objects> const (&cases)[N], Settle const& settle) {
  std::string const name = argc == 3 ? argv[1] : "";
  std::string const way = argc == 3 ? argv[2] : "";
  if (name == "list") {
    for (Case<Objects> const& c : cases) std::puts(c.name);
    return 0;
  }
  for (Case<Objects> const& c : cases) {
    if (name != c.name) continue;
    static void (*work)(Objects&) = way == "raw" ? c.raw : way == "zero" ? c.zero : +[](Objects&) {};
    Objects objects;
    auto const call = [](void* data) { work(*static_cast<Objects*>(data)); };
    for (int i = 0; i < calls; ++i) call(&objects);
    settle();
    measured(call, &objects);
    return 0;
  }
  std::fprintf(stderr, "%s <name> raw|zero|nothing, or: list names\n", argv[0]);
  return 2;
}

}  // namespace bench
