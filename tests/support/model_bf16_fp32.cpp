// SPDX-License-Identifier: Apache-2.0
#include "support/model_of.hpp"

ZERO_TEST_DEFINE_MODEL(bf16_fp32, zero::Precision<zero::bf16, zero::bf16, zero::bf16, float>)
