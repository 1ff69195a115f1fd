# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(zero_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/zero")
install(TARGETS zero EXPORT zeroTargets FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT zeroTargets NAMESPACE zero:: DESTINATION "${zero_package_dir}")

# Before 1.0 a minor version may change the interface. Headers serve every architecture.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/zeroConfig.cmake.in" "${PROJECT_BINARY_DIR}/zeroConfig.cmake"
  INSTALL_DESTINATION "${zero_package_dir}" NO_SET_AND_CHECK_MACRO)
install(FILES "${PROJECT_BINARY_DIR}/zeroConfig.cmake" "${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake" DESTINATION "${zero_package_dir}")
# The components are put together where they are used, with the CUDA, NCCL and MPI of that machine.
foreach(file zeroCuda zeroMpi zeroNccl FindNCCL)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/${file}.cmake" DESTINATION "${zero_package_dir}")
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/zero")
