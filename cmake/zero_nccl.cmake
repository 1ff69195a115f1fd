# SPDX-License-Identifier: Apache-2.0
#
# Defines zero::nccl: zero::zero, or zero::cuda where it is there, with what the headers nccl*.hpp need. Used by this build (ZERO_NCCL) and by the
# installed package (component nccl). Expects zero::zero, CUDAToolkit and NCCL.

if(NOT TARGET zero::nccl)
  add_library(zero::nccl INTERFACE IMPORTED GLOBAL)
  if(TARGET zero::cuda)
    target_link_libraries(zero::nccl INTERFACE zero::cuda)
  endif()
  target_link_libraries(zero::nccl INTERFACE zero::zero NCCL::NCCL CUDA::cudart)
  target_compile_definitions(zero::nccl INTERFACE ZERO_HAS_NCCL=1)
endif()
