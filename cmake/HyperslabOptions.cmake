# SPDX-License-Identifier: Apache-2.0
option(HYPERSLAB_TESTS "Build the tests" ON)
option(HYPERSLAB_UNITY "Compile the sources of a library or a test in batches: half the processor time of a build. OFF suits \
who edits single files" ON)
set(HYPERSLAB_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO (where a toolkit and a driver are)")
set_property(CACHE HYPERSLAB_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT HYPERSLAB_CUDA MATCHES "^([Aa][Uu][Tt][Oo]|[Oo][Nn]|[Oo][Ff][Ff]|[Yy][Ee][Ss]|[Nn][Oo]|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|0|1)$")
  message(FATAL_ERROR "HYPERSLAB_CUDA is '${HYPERSLAB_CUDA}', expected AUTO, ON or OFF")
endif()
option(HYPERSLAB_NATIVE "Compile for this machine's processor (-march=native)" ON)
option(HYPERSLAB_WERROR "Treat warnings as errors" OFF)
set(HYPERSLAB_SANITIZE OFF CACHE STRING
  "Sanitizers: ON (AddressSanitizer and UndefinedBehaviorSanitizer), thread (ThreadSanitizer), or OFF")
set_property(CACHE HYPERSLAB_SANITIZE PROPERTY STRINGS OFF ON thread)
option(HYPERSLAB_FUZZ "Build libFuzzer targets of the parsers, with the sanitizers of ON (Clang)" OFF)

if(PROJECT_BINARY_DIR STREQUAL PROJECT_SOURCE_DIR)
  message(FATAL_ERROR "configure into a folder of its own: cmake -S . -B build")
endif()
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16))
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: GCC 12 "
                      "or Clang 16 is the oldest that will do; set CXX or load a newer module")
endif()

if(HYPERSLAB_FUZZ AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "HYPERSLAB_FUZZ needs Clang (libFuzzer), found ${CMAKE_CXX_COMPILER_ID}; set CMAKE_CXX_COMPILER "
                      "to clang++-16, or run jobs/fuzz.sh")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

# By the compiler's own list of headers ccache need not read them once more before a compilation that it does not know.
find_program(HYPERSLAB_CCACHE ccache)
if(HYPERSLAB_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_DEPEND=1 "${HYPERSLAB_CCACHE}")
endif()

include(CheckCXXCompilerFlag)
if(HYPERSLAB_NATIVE)
  check_cxx_compiler_flag(-march=native HYPERSLAB_HAS_MARCH_NATIVE)
endif()

set(hyperslab_sanitizers "")
if(HYPERSLAB_SANITIZE STREQUAL "thread")
  set(hyperslab_sanitizers -fsanitize=thread)
elseif(HYPERSLAB_SANITIZE OR HYPERSLAB_FUZZ)
  set(hyperslab_sanitizers -fsanitize=address,undefined)
endif()
set(hyperslab_sanitizer_options "")
if(hyperslab_sanitizers)
  set(hyperslab_sanitizer_options ${hyperslab_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif()
if(HYPERSLAB_FUZZ)
  list(APPEND hyperslab_sanitizer_options -fsanitize=fuzzer-no-link)
endif()
if(hyperslab_sanitizers AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 takes parts of std::regex for uninitialized beside sanitizers (its bug 105562).
  list(APPEND hyperslab_sanitizer_options -Wno-maybe-uninitialized)
endif()

# Warnings, sanitizers and processor flags of our own code; no dependency sees them.
add_library(hyperslab_flags INTERFACE)
target_compile_options(hyperslab_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-sign-compare>"
  "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Woverloaded-virtual>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-Wno-sign-compare>"
  # GCC 12 finds overlaps inside std::string that are not there (its bug 105329).
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>"
  "$<$<AND:$<BOOL:${HYPERSLAB_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>"
  "$<$<AND:$<BOOL:${HYPERSLAB_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>"
  "$<$<AND:$<BOOL:${HYPERSLAB_NATIVE}>,$<BOOL:${HYPERSLAB_HAS_MARCH_NATIVE}>,$<COMPILE_LANGUAGE:C,CXX>>:-march=native>"
  "$<$<COMPILE_LANGUAGE:C,CXX>:${hyperslab_sanitizer_options}>")
target_link_options(hyperslab_flags INTERFACE
  ${hyperslab_sanitizers}
  $<$<BOOL:${BUILD_SHARED_LIBS}>:-Wl,--no-undefined>)
