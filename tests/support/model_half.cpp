// SPDX-License-Identifier: Apache-2.0
#include "support/model_of.hpp"

ZERO_TEST_DEFINE_MODEL(half, zero::Precision<zero::half>)
