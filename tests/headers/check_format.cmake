# SPDX-License-Identifier: Apache-2.0
#
# cmake -DROOT=<repository> -P check_format.cmake: clang-format 16 changes nothing in any tracked C++ or CUDA file.

cmake_minimum_required(VERSION 3.25)
find_program(CLANG_FORMAT NAMES clang-format-16 clang-format REQUIRED)
find_program(GIT git REQUIRED)
execute_process(COMMAND "${CLANG_FORMAT}" --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
if(NOT version MATCHES "version 16\\.")
  message(FATAL_ERROR "the repository is formatted with clang-format 16, and versions differ; found: ${version}")
endif()
# The checkout may belong to somebody else than who runs the tests.
execute_process(COMMAND "${GIT}" -c "safe.directory=*" ls-files "*.hpp" "*.cpp" "*.cuh" "*.cu"
  WORKING_DIRECTORY "${ROOT}" OUTPUT_VARIABLE files COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "\n$" "" files "${files}")
string(REPLACE "\n" ";" files "${files}")
set(present "")
foreach(file IN LISTS files)
  if(EXISTS "${ROOT}/${file}")
    list(APPEND present "${file}")
  endif()
endforeach()
list(LENGTH present count)
message(STATUS "${count} files")
if(count EQUAL 0)
  message(FATAL_ERROR "git lists no files to check")
endif()
execute_process(COMMAND "${CLANG_FORMAT}" --dry-run -Werror ${present} WORKING_DIRECTORY "${ROOT}" RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "some files are not formatted: git ls-files '*.hpp' '*.cpp' '*.cuh' '*.cu' | xargs clang-format-16 -i")
endif()
