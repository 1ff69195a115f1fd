# SPDX-License-Identifier: Apache-2.0
#
# cmake -DROOT=<include folder> -P check_rules.cmake: rules about the headers that no compiler checks.

cmake_minimum_required(VERSION 3.25)

# Heavy headers, or headers that one of the supported compilers lacks.
set(banned iostream ranges functional regex map condition_variable source_location format)
# Avoided: each use is a decision, and stands here as <file>:<header>.
set(avoided algorithm mutex chrono)
set(allowed
  zero/comm/run_ranks.hpp:chrono           # its deadline is a time
  zero/comm/detail/nccl_family.hpp:chrono  # so are the watchdog's
  zero/comm/mpi_environment.hpp:chrono     # gives peers some time
  zero/comm/detail/mpi_patience.hpp:chrono # sleeps between two looks
  zero/device/host_stream_core.hpp:chrono  # delays a stream for so many microseconds
)

set(violations "")
macro(violation text)
  string(APPEND violations "${name}: ${text}\n")
endmacro()

file(GLOB_RECURSE headers "${ROOT}/*.hpp" "${ROOT}/*.cuh")
foreach(header IN LISTS headers)
  cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${ROOT}" OUTPUT_VARIABLE name)
  file(READ "${header}" text)
  if(NOT text MATCHES "^// SPDX-License-Identifier: Apache-2.0\n#pragma once\n/// @file\n/// [^\n]+")
    violation("must begin with the SPDX line, #pragma once, /// @file and one sentence")
  endif()
  string(REGEX MATCHALL "\n" lines "${text}")
  list(LENGTH lines line_count)
  if(line_count GREATER_EQUAL 400)
    violation("has ${line_count} lines; a header has under 400")
  endif()
  string(REGEX MATCHALL "#[ ]*include[ ]*<[a-z_/]+>" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE ".*<(.*)>" "\\1" include "${include}")
    if(include IN_LIST banned)
      violation("includes <${include}>, which is banned")
    elseif(include IN_LIST avoided AND NOT "${name}:${include}" IN_LIST allowed)
      violation("includes <${include}>, which is avoided; if it must be, list it in check_rules.cmake")
    endif()
  endforeach()
  string(REGEX MATCHALL "\n[ ]*using namespace [^;\n]*" uses "${text}")
  if(uses)
    violation("has a using-directive")
  endif()
  string(REGEX MATCHALL "#[ ]*define[ ]+[A-Za-z_0-9]+" macros "${text}")
  foreach(definition IN LISTS macros)
    if(NOT definition MATCHES "define[ ]+ZERO_")
      violation("`${definition}`: macros begin with ZERO_")
    endif()
  endforeach()
  if(text MATCHES "#[ ]*if[^\n]*__has_include")
    violation("asks __has_include: what is there comes from the build")
  endif()
endforeach()

if(NOT headers)
  message(FATAL_ERROR "no headers under ${ROOT}")
endif()
if(violations)
  message(FATAL_ERROR "${violations}")
endif()
