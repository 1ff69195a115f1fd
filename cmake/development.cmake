# SPDX-License-Identifier: Apache-2.0
# What zero's own tests, examples and benchmarks are built with. Nothing here reaches a consumer.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(ZERO_CCACHE ccache)
mark_as_advanced(ZERO_CCACHE)
if(ZERO_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${ZERO_CCACHE}")
endif()

# Warnings are errors in what we build ourselves; a new compiler's new warning must not break somebody else's build.
add_library(zero_warnings INTERFACE)
target_compile_options(zero_warnings INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Werror>")
