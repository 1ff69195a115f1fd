# SPDX-License-Identifier: Apache-2.0
#
# The target zero::cuda: zero::zero and what the CUDA back end needs. For the build of zero itself (ZERO_CUDA) and for its installed package
# (component cuda). Expects zero::zero and CUDA::cudart.

if(NOT TARGET zero::cuda)
  add_library(zero::cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(zero::cuda INTERFACE zero::zero CUDA::cudart)
  target_compile_definitions(zero::cuda INTERFACE ZERO_HAS_CUDA=1)
  # CMake 3.25 knows no C++20 for nvcc 13: it adds no flag for CUDA_STANDARD 20, and cxx_std_20 never reaches .cu files. Twice the same flag is
  # fine for nvcc; a later standard stays.
  target_compile_options(zero::cuda INTERFACE
    "$<$<AND:$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>,$<NOT:$<VERSION_GREATER:0$<TARGET_PROPERTY:CUDA_STANDARD>,20>>>:-std=c++20>")
endif()
