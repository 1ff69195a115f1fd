# SPDX-License-Identifier: Apache-2.0
#
# cmake -DCOMPILER= -DINCLUDE= -DSOURCE= -DMESSAGE= -P check.cmake: see zero_add_compile_failure.

cmake_minimum_required(VERSION 3.25)
set(ENV{LC_ALL} C)
set(command "${COMPILER}" -std=c++20 -fsyntax-only "-I${INCLUDE}" "${SOURCE}")

execute_process(COMMAND ${command} -DZERO_COMPILES RESULT_VARIABLE control OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT control EQUAL 0)
  message(FATAL_ERROR "control: with ZERO_COMPILES defined the source must compile, and does not:\n${output}")
endif()
execute_process(COMMAND ${command} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "compiled, and must not")
endif()
if(NOT output MATCHES "${MESSAGE}")
  message(FATAL_ERROR "does not compile, as it should, but nothing that the compiler says matches \"${MESSAGE}\":\n${output}")
endif()
