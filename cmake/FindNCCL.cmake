# SPDX-License-Identifier: Apache-2.0
#[[
Finds NCCL: nccl.h and the library, of a CUDA toolkit, a Debian package, or a Python wheel (nvidia/nccl/{include,lib}, which has only
libnccl.so.2). Give the folder above `include` and `lib` as NCCL_ROOT (variable or environment) where there are several.

Defines NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIR, NCCL_LIBRARY and the target NCCL::NCCL. The package and the library that runs may differ in
version; the headers' version counts here.
]]

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include
  DOC "Folder of nccl.h")
# The library beside the header first: else another one's would win, that of the toolkit over that of a wheel. NAMES_PER_DIR for the same reason.
set(nccl_beside "")
if(NCCL_INCLUDE_DIR)
  cmake_path(GET NCCL_INCLUDE_DIR PARENT_PATH nccl_beside)
endif()
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${nccl_beside} ${CUDAToolkit_LIBRARY_DIR}
  PATH_SUFFIXES lib lib64 DOC "The NCCL library")
unset(nccl_beside)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

set(NCCL_VERSION "")
if(NCCL_INCLUDE_DIR AND EXISTS "${NCCL_INCLUDE_DIR}/nccl.h")
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_lines REGEX "^#define[ \t]+NCCL_(MAJOR|MINOR|PATCH)[ \t]+[0-9]+")
  foreach(part MAJOR MINOR PATCH)
    if(nccl_lines MATCHES "NCCL_${part}[ \t]+([0-9]+)")
      list(APPEND NCCL_VERSION "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
  unset(nccl_lines)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
