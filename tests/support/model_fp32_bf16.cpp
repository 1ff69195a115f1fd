// SPDX-License-Identifier: Apache-2.0
#include "support/model_of.hpp"

ZERO_TEST_DEFINE_MODEL(fp32_bf16, zero::Precision<float, float, zero::bf16, float>)
