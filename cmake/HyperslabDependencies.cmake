# SPDX-License-Identifier: Apache-2.0
# Every dependency comes from find_package or a plain search, so that CMAKE_PREFIX_PATH, environment
# modules and Spack work; nothing is downloaded.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS C CXX)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)
find_package(OpenSSL 1.1 REQUIRED COMPONENTS Crypto)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(turbojpeg REQUIRED IMPORTED_TARGET libturbojpeg)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
# Boost.Asio has the coroutines of C++20 since 1.74.
find_package(Boost 1.74 REQUIRED COMPONENTS program_options)

# yaml-cpp 0.7 names its target yaml-cpp, 0.8 yaml-cpp::yaml-cpp.
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp)
  add_library(yaml-cpp INTERFACE IMPORTED)
  target_link_libraries(yaml-cpp INTERFACE yaml-cpp::yaml-cpp)
endif()

# The serial library is enough (a file per rank); a parallel one includes mpi.h in its headers.
find_package(HDF5 1.10 REQUIRED COMPONENTS C)
if(NOT TARGET hdf5::hdf5)
  message(FATAL_ERROR "HDF5 was found without the target hdf5::hdf5; CMake 3.25 or newer makes it")
endif()
if(HDF5_IS_PARALLEL)
  target_link_libraries(hdf5::hdf5 INTERFACE MPI::MPI_C)
endif()

# OpenBLAS with 32-bit integers, its OpenMP build first: threads of another kind would compete with ours.
find_path(OPENBLAS_INCLUDE_DIR NAMES cblas.h
  PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp openblas-openmp openblas
                ${CMAKE_LIBRARY_ARCHITECTURE})
find_library(OPENBLAS_LIBRARY NAMES openblas openblasp PATH_SUFFIXES openblas-openmp)
if(NOT OPENBLAS_INCLUDE_DIR OR NOT OPENBLAS_LIBRARY)
  message(FATAL_ERROR "OpenBLAS was not found: install libopenblas-openmp-dev, load a module, or set "
                      "OPENBLAS_INCLUDE_DIR and OPENBLAS_LIBRARY")
endif()
add_library(hyperslab_blas INTERFACE)
target_include_directories(hyperslab_blas SYSTEM INTERFACE "${OPENBLAS_INCLUDE_DIR}")
target_link_libraries(hyperslab_blas INTERFACE "${OPENBLAS_LIBRARY}")

include(HyperslabCuda)

if(HYPERSLAB_TESTS)
  find_package(GTest REQUIRED)
endif()
