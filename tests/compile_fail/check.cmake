# SPDX-License-Identifier: Apache-2.0
#
# cmake -DCOMPILER= -DINCLUDE= [-DMORE_INCLUDES=a|b] -DSOURCE= -DMESSAGE= -P check.cmake: see zero_add_compile_failure. With more folders to
# include from, the CUDA back end is on. A .cu file is compiled by what CUDACXX names.

cmake_minimum_required(VERSION 3.25)
set(ENV{LC_ALL} C)
if(SOURCE MATCHES "\\.cu$")
  set(command "$ENV{CUDACXX}" -std=c++20 --ptx -o /dev/null -DZERO_HAS_CUDA=1 "-I${INCLUDE}" "${SOURCE}")
else()
  set(command "${COMPILER}" -std=c++20 -fsyntax-only "-I${INCLUDE}" "${SOURCE}")
  if(MORE_INCLUDES)
    string(REGEX REPLACE "([^|]+)\\|?" "-isystem;\\1;" includes "${MORE_INCLUDES}")
    list(APPEND command -DZERO_HAS_CUDA=1 ${includes})
  endif()
endif()

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
