// SPDX-License-Identifier: Apache-2.0
#include "support/model_of.hpp"

template struct zero::test::ModelMaker<zero::test::PrecisionName::fp32>;
