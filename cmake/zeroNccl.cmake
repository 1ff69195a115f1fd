# SPDX-License-Identifier: Apache-2.0
#
# The target zero::nccl: zero::cuda and NCCL. For the build of zero itself (ZERO_NCCL) and for its installed package (component nccl), because
# which NCCL it is is a matter of the machine where it is used. Expects zero::cuda and NCCL::NCCL.

if(NOT TARGET zero::nccl)
  add_library(zero::nccl INTERFACE IMPORTED GLOBAL)
  target_link_libraries(zero::nccl INTERFACE zero::cuda NCCL::NCCL)
  target_compile_definitions(zero::nccl INTERFACE ZERO_HAS_NCCL=1)
endif()
