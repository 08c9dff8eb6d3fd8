# SPDX-License-Identifier: Apache-2.0
# hyperslab_add_module(core SOURCES a.cpp b.cpp LINK hyperslab_x PRIVATE fmt::fmt)
#   makes the library hyperslab_core with the public headers of include/hyperslab/core, each of
#   which must compile alone (target all_verify_interface_header_sets).
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

# hyperslab_unite(target batch): compiles about so many of its sources at once if HYPERSLAB_UNITY is on; CUDA's, and those
# with options of their own, stay alone.
function(hyperslab_unite target batch)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  # Folders below add sources later.
  cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [[${PROJECT_SOURCE_DIR}]] CALL hyperslab_even_batches ${target} ${batch})")
endfunction()

# hyperslab_even_batches(target batch): as many batches as come nearest to that size, all equally large. A last batch of two
# sources would read nearly as many headers as a full one.
function(hyperslab_even_batches target batch)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(LENGTH sources count)
  math(EXPR batches "(${count} + ${batch} / 2) / ${batch}")
  if(batches LESS 1)
    set(batches 1)
  endif()
  math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
  if(size LESS 2)
    set(size 2) # 0 would mean all at once, and CMake leaves a batch of one source alone
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HYPERSLAB_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# hyperslab_build_light(target): -O1 in a release, for a module that waits for files, the network or people and computes
# nothing large. It compiles in two thirds of the time.
function(hyperslab_build_light target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

function(hyperslab_add_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  set(target "hyperslab_${name}")
  file(GLOB headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/hyperslab/${name}/*.hpp")
  add_library(${target} ${ARG_SOURCES})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
                                                   FILES ${headers})
  hyperslab_unite(${target} 16)
  target_link_libraries(${target} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE} hyperslab_flags)
endfunction()

# hyperslab_add_part(ops cpu SOURCES a.cpp OPTIONS -f... LINK x)
#   adds sources to the library hyperslab_ops that need compile options of their own, and compiles them in batches.
function(hyperslab_add_part module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;OPTIONS;LINK" ${ARGN})
  set(target "hyperslab_${module}_${name}")
  add_library(${target} OBJECT ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE $<TARGET_PROPERTY:hyperslab_${module},INCLUDE_DIRECTORIES>)
  target_compile_options(${target} PRIVATE ${ARG_OPTIONS})
  target_link_libraries(${target} PRIVATE ${ARG_LINK} hyperslab_flags)
  hyperslab_unite(${target} 8)
  target_sources(hyperslab_${module} PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()
