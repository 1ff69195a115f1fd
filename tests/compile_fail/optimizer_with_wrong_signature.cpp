// SPDX-License-Identifier: Apache-2.0
#include <zero/train/optimizers.hpp>

struct Forgetful {
  static constexpr int states = 2;
#if defined(ZERO_COMPILES)
  void operator()(float& parameter, float gradient, float& mean, float& square) const {
    mean = gradient;
    square = gradient * gradient;
#else
  void operator()(float& parameter, float gradient, float& mean) const {
    mean = gradient;
#endif
    parameter -= gradient;
  }
};

static_assert(zero::check_optimizer<Forgetful>());
