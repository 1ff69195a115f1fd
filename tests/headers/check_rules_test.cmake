# SPDX-License-Identifier: Apache-2.0
# check_rules.cmake must find every violation in the folder bad/, or it checks nothing.

cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND "${CMAKE_COMMAND}" "-DROOT=${CMAKE_CURRENT_LIST_DIR}/bad" -P "${CMAKE_CURRENT_LIST_DIR}/check_rules.cmake"
  RESULT_VARIABLE result ERROR_VARIABLE output OUTPUT_QUIET)
if(result EQUAL 0)
  message(FATAL_ERROR "the folder bad/ passed")
endif()
string(REGEX REPLACE "[ \n]+" " " output "${output}")
foreach(sentence
    "form.hpp: must begin with the SPDX line"
    "form.hpp: has 400 lines"
    "content.hpp: includes <iostream>, which is banned"
    "content.hpp: includes <map>, which is banned"
    "content.hpp: includes <algorithm>, which is avoided"
    "content.hpp: has a using-directive"
    "content.hpp: `#define BAD_MACRO`"
    "content.hpp: asks __has_include")
  string(FIND "${output}" "${sentence}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "not said: ${sentence}\nsaid: ${output}")
  endif()
endforeach()
