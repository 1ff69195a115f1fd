// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a training loop needs. Adaptors for tests and checks (`comm/counting.hpp`, `comm/checked.hpp`) are included by name.

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/self.hpp>
#include <zero/comm/threads.hpp>
#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/streams.hpp>
#include <zero/layout/parameter_layout.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/conversion.hpp>
#include <zero/tensor/placement.hpp>
#include <zero/tensor/sharded_tensor.hpp>
#include <zero/tensor/tensor_ref.hpp>
#include <zero/train/captured_graph.hpp>
#include <zero/train/initial_values.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/pass.hpp>
#include <zero/train/plan.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/scopes.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>
#include <zero/train/stage.hpp>
#include <zero/train/step_report.hpp>
#include <zero/train/unit_view.hpp>

// The CUDA back end, on with the CMake target zero::cuda. Kernels need a CUDA compiler; all else of it does not.
#if defined(ZERO_HAS_CUDA)
#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_graph.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/cuda_stream.hpp>
#if defined(__CUDACC__)
#include <zero/device/cuda_kernels.cuh>
#endif
#endif
