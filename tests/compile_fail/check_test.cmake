# SPDX-License-Identifier: Apache-2.0
# check.cmake must accept what fails with its sentence and refuse everything else.

cmake_minimum_required(VERSION 3.25)

function(expect_check source message outcome)
  execute_process(COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${COMPILER}" "-DINCLUDE=${INCLUDE}" "-DSOURCE=${CMAKE_CURRENT_LIST_DIR}/harness/${source}"
    "-DMESSAGE=${message}" -P "${CMAKE_CURRENT_LIST_DIR}/check.cmake" RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(outcome STREQUAL "accepted")
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${source} was refused: ${output}")
    endif()
  elseif(result EQUAL 0 OR NOT output MATCHES "${outcome}")
    message(FATAL_ERROR "${source} with \"${message}\" was to be refused because it `${outcome}`, got status ${result}: ${output}")
  endif()
endfunction()

expect_check(fails_with_a_sentence.cpp "a number of ranks is positive" accepted)
expect_check(fails_with_a_sentence.cpp "another sentence" "nothing that the compiler says matches")
expect_check(compiles.cpp "a number of ranks is positive" "compiled, and must not")
expect_check(never_compiles.cpp "a number of ranks is positive" "control: with ZERO_COMPILES defined")
