# SPDX-License-Identifier: Apache-2.0
# hyperslab_add_module(core SOURCES a.cpp b.cpp LINK hyperslab_x PRIVATE fmt::fmt)
#   makes the library hyperslab_core with the public headers of include/hyperslab/core, each of
#   which must compile alone (target all_verify_interface_header_sets).
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

function(hyperslab_add_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  set(target "hyperslab_${name}")
  file(GLOB headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/hyperslab/${name}/*.hpp")
  add_library(${target} ${ARG_SOURCES})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
                                                   FILES ${headers})
  target_link_libraries(${target} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE} hyperslab_flags)
endfunction()
