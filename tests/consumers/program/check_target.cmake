# SPDX-License-Identifier: Apache-2.0
# What a consumer must not get: our warnings, our tests, our helpers.

get_target_property(options zero::zero INTERFACE_COMPILE_OPTIONS)
# The one flag allowed silences what clang says of loops in the user's functors; nothing may add a warning.
string(REPLACE "-Wno-pass-failed" "" options "${options}")
if(options MATCHES "-W")
  message(FATAL_ERROR "zero::zero passes on warning flags: ${options}")
endif()
foreach(target zero_warnings zero_test_main test_headers zero_examples_blas)
  if(TARGET ${target})
    message(FATAL_ERROR "a consumer's build has our target ${target}")
  endif()
endforeach()
if(DEFINED CMAKE_CXX_STANDARD)
  message(FATAL_ERROR "zero sets CMAKE_CXX_STANDARD")
endif()
