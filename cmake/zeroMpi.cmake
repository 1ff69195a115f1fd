# SPDX-License-Identifier: Apache-2.0
#
# The target zero::mpi: zero::zero and what include/zero/comm/mpi.hpp needs. MPI's C++ bindings, which are gone from the standard, are left
# out. For the build of zero itself (ZERO_MPI) and for its installed package (component mpi). Expects zero::zero and MPI::MPI_CXX.

if(NOT TARGET zero::mpi)
  add_library(zero::mpi INTERFACE IMPORTED GLOBAL)
  target_link_libraries(zero::mpi INTERFACE zero::zero MPI::MPI_CXX)
  target_compile_definitions(zero::mpi INTERFACE ZERO_HAS_MPI=1 OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
endif()
