# SPDX-License-Identifier: Apache-2.0
# Enables the language CUDA, for zero's own tests and examples, in the folder that includes this. Without an nvcc CMAKE_CUDA_COMPILER is not
# set afterwards. CMAKE_CUDA_ARCHITECTURES says for which GPUs; the default is that of the tests' compile-only runs.

include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90-real)  # tests/gpu/run says `native`
  endif()
  enable_language(CUDA)
  if(ZERO_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${ZERO_CCACHE}")
  endif()
endif()
