// SPDX-License-Identifier: Apache-2.0
/// @file
/// The kernels that matter, once each: what check_kernels.sh looks at.

#include <zero/comm/detail/ordered_sum.hpp>
#include <zero/device/cuda_kernels.cuh>
#include <zero/train/detail/element_loops.hpp>

namespace zero::detail {

// 28 bytes an element: 14 read, 14 written.
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OptimizerStep<AdamW, float, bf16, bf16> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OptimizerStep<AdamW, float, float, float> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OptimizerStep<AdamW, double, double, double> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, AddInto<float, bf16> const&);
template cudaError_t launch_accumulate(CudaLaunch, std::int64_t, SquareSum<float> const&);
template cudaError_t launch_accumulate(CudaLaunch, std::int64_t, SquareSum<bf16> const&);
template cudaError_t launch_accumulate(CudaLaunch, std::int64_t, SquareSum<double> const&);

// The sums of `Ordered`: one kernel each for any number of ranks.
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OrderedElement<Sum, float> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OrderedElement<Sum, bf16> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OrderedElement<Sum, half> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OrderedElement<Sum, double> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OrderedElement<Max, float> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OrderedElement<Max, bf16> const&);
template cudaError_t launch_for_each(CudaLaunch, std::int64_t, OrderedElement<Max, half> const&);

}  // namespace zero::detail
