// SPDX-License-Identifier: Apache-2.0
/// @file
/// A consumer's program: two translation units that include the library.

#include <zero/zero.hpp>

#include <cstdio>
#include <string>

zero::ParameterLayout make_layout();

int main() {
  zero::ParameterLayout const layout = make_layout();
  if (layout.elements() != 12) {
    std::printf("a layout of %lld elements instead of 12\n", static_cast<long long>(layout.elements()));
    return 1;
  }
#if defined(PACKAGE_VERSION)
  std::string const version =
      std::to_string(ZERO_VERSION_MAJOR) + "." + std::to_string(ZERO_VERSION_MINOR) + "." + std::to_string(ZERO_VERSION_PATCH);
  if (version != PACKAGE_VERSION) {
    std::printf("the package says it is %s, the headers say %s\n", PACKAGE_VERSION, version.c_str());
    return 1;
  }
#endif
  return 0;
}
