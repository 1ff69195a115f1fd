# SPDX-License-Identifier: Apache-2.0
#
# cmake -DWAY=<folder> [-DCUDA_WAY=package|folder] -DSOURCE=<repository> -DBUILD=<its build> -DWORK=<scratch> -DGENERATOR= -DCOMPILER= -P check.cmake

cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${WORK}")
set(options "-DZERO_SOURCE=${SOURCE}")

if(WAY STREQUAL "find_package" OR CUDA_WAY STREQUAL "package")
  # Installed in one place and moved to another: a package must not remember where it was.
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/first" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(RENAME "${WORK}/first" "${WORK}/prefix")
  set(options "-DCMAKE_PREFIX_PATH=${WORK}/prefix")

  file(GLOB_RECURSE headers RELATIVE "${SOURCE}/include" "${SOURCE}/include/*")
  file(GLOB_RECURSE installed RELATIVE "${WORK}/prefix/include" "${WORK}/prefix/include/*")
  if(NOT headers STREQUAL installed)
    message(FATAL_ERROR "installed headers: ${installed}\nare not the repository's: ${headers}")
  endif()
  file(GLOB_RECURSE files "${WORK}/prefix/share/*.cmake")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    foreach(folder "${SOURCE}" "${BUILD}" "${WORK}")
      string(FIND "${text}" "${folder}" found)
      if(NOT found EQUAL -1)
        message(FATAL_ERROR "${file} mentions ${folder}")
      endif()
    endforeach()
  endforeach()
endif()

if(WAY STREQUAL "cuda")
  list(APPEND options "-DCMAKE_CUDA_ARCHITECTURES=90-real" "-DCMAKE_CUDA_COMPILER=$ENV{CUDACXX}")
endif()

execute_process(COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/${WAY}" -B "${WORK}/build" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" -DCMAKE_BUILD_TYPE=Release ${options} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/build/consumer" COMMAND_ERROR_IS_FATAL ANY)
