# SPDX-License-Identifier: Apache-2.0
#
# cmake -DROOT=<repository> -DSOURCE=<file that includes headers> [-DOPTIONS=<of the compiler>] -P check_tidy.cmake: .clang-tidy finds nothing in
# the headers.

cmake_minimum_required(VERSION 3.25)
find_program(CLANG_TIDY NAMES clang-tidy-14 clang-tidy REQUIRED)
separate_arguments(options UNIX_COMMAND "${OPTIONS}")
execute_process(
  COMMAND "${CLANG_TIDY}" --quiet "--config-file=${ROOT}/.clang-tidy" "--header-filter=^${ROOT}/include/zero/" "${SOURCE}"
    -- -std=c++20 "-I${ROOT}/include" ${options}
  RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "clang-tidy has findings")
endif()
