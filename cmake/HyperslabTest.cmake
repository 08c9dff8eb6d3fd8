# SPDX-License-Identifier: Apache-2.0
include(GoogleTest)

# The rate of matrix products is stated: to measure it takes most of the processor time of a tiny run's start. No core
# exceeds it, as utilization would then be unknown.
set(HYPERSLAB_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  HYPERSLAB_MATRIX_GFLOPS=1000)
# Threads of two tests at once outnumber the cores: at each end of a loop one would spin for milliseconds, in which
# the thread that it waits for cannot run.
set(HYPERSLAB_TEST_SPINS GOMP_SPINCOUNT=set:1000)

# The hundreds of test programs link in a quarter of the time.
include(CheckLinkerFlag)
if(NOT HYPERSLAB_SANITIZE AND NOT HYPERSLAB_FUZZ)
  check_linker_flag(CXX -fuse-ld=gold HYPERSLAB_HAS_GOLD)
endif()

# hyperslab_time_limit(VARIABLE seconds): what a test may take; a sanitizer slows it down.
function(hyperslab_time_limit variable seconds)
  if(HYPERSLAB_SANITIZE)
    math(EXPR seconds "4 * ${seconds}")
  endif()
  set(${variable} ${seconds} PARENT_SCOPE)
endfunction()

# hyperslab_suites(VARIABLE a.cpp ...): GoogleTest's filter for the suites of some sources.
function(hyperslab_suites variable)
  set(filter "")
  foreach(source IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
    file(STRINGS "${source}" macros REGEX "^TEST(_F|_P)?\\(")
    foreach(macro IN LISTS macros)
      string(REGEX REPLACE "^TEST[_FP]*\\(([A-Za-z0-9_]+),.*" "\\1" suite "${macro}")
      list(APPEND filter "${suite}.*" "*/${suite}.*")
    endforeach()
  endforeach()
  if(NOT filter)
    message(FATAL_ERROR "no tests in ${ARGN}")
  endif()
  list(REMOVE_DUPLICATES filter)
  list(JOIN filter ":" filter)
  set(${variable} "${filter}" PARENT_SCOPE)
endfunction()

# hyperslab_test_program(name main a.cpp ... ): a program of tests, or more sources of one that is there.
function(hyperslab_test_program name main)
  if(TARGET ${name})
    target_sources(${name} PRIVATE ${ARGN})
    return()
  endif()
  add_executable(${name} ${ARGN})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  hyperslab_unite(${name} 8)
  # Modules are optimized; their tests compile a quarter faster so.
  target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  target_link_options(${name} PRIVATE $<$<BOOL:${HYPERSLAB_HAS_GOLD}>:-fuse-ld=gold>)
  target_link_libraries(${name} PRIVATE hyperslab_test_support ${main} GTest::gmock hyperslab_flags)
endfunction()

# hyperslab_add_test(name SOURCES a.cpp LINK hyperslab_x [RANKS 1 2 4] [IN program] [APART b.cpp] [SHARDS 2] [LABELS unit] [TIMEOUT s])
#   A program is a CTest test; with SHARDS it is as many, each of which runs its share of the cases. With RANKS
#   the program runs under mpirun once for each number of ranks; a failed check on any rank fails the test.
#   IN names a program that several tests share, each of which runs the suites of its SOURCES: it compiles and links in
#   less time than a program each. APART are those of SOURCES that HYPERSLAB_UNITY leaves alone, because their names
#   collide with others'.
function(hyperslab_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;SHARDS;IN" "SOURCES;APART;LINK;RANKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 180)
  endif()
  hyperslab_time_limit(ARG_TIMEOUT ${ARG_TIMEOUT})
  set(program ${name})
  set(filter "")
  if(ARG_IN)
    set(program ${ARG_IN})
    hyperslab_suites(filter ${ARG_SOURCES})
    set(filter "--gtest_filter=${filter}")
  endif()
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(ARG_RANKS)
    hyperslab_test_program(${program} hyperslab_test_mpi_main ${ARG_SOURCES})
  else()
    hyperslab_test_program(${program} GTest::gtest_main ${ARG_SOURCES})
  endif()
  target_link_libraries(${program} PRIVATE ${ARG_LINK})
  if(ARG_RANKS)
    foreach(ranks ${ARG_RANKS})
      add_test(NAME ${name}_${ranks}_ranks
        COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${program}> ${filter})
      math(EXPR processors "${ranks}")
      set_tests_properties(${name}_${ranks}_ranks PROPERTIES
        LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${processors}
        ENVIRONMENT "OMP_NUM_THREADS=1;${HYPERSLAB_TEST_ENVIRONMENT}")
    endforeach()
  else()
    if(NOT ARG_SHARDS)
      set(ARG_SHARDS 1)
    endif()
    math(EXPR last "${ARG_SHARDS} - 1")
    foreach(shard RANGE ${last})
      set(test ${name})
      if(ARG_SHARDS GREATER 1)
        set(test ${name}_${shard})
      endif()
      add_test(NAME ${test} COMMAND ${program} --gtest_brief=1 ${filter})
      set_tests_properties(${test} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
        ENVIRONMENT "OMP_NUM_THREADS=2;GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}"
        ENVIRONMENT_MODIFICATION ${HYPERSLAB_TEST_SPINS})
    endforeach()
  endif()
endfunction()
