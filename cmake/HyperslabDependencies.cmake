# SPDX-License-Identifier: Apache-2.0
# Every dependency comes from find_package or a plain search, so that CMAKE_PREFIX_PATH, environment
# modules and Spack work; nothing is downloaded.
# hyperslab_require(DEBIAN_PACKAGE NAME ...) is find_package(NAME ...), and names the package if it is missing.
macro(hyperslab_require package name)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${name} was not found (${ARGN}): install ${package} (Debian, Ubuntu), load a module, or name its "
                        "folder in CMAKE_PREFIX_PATH")
  endif()
endmacro()
# hyperslab_require_module(DEBIAN_PACKAGE PREFIX MODULE) makes PkgConfig::PREFIX.
macro(hyperslab_require_module package prefix module)
  pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
  if(NOT ${prefix}_FOUND)
    message(FATAL_ERROR "${module} was not found by pkg-config: install ${package} (Debian, Ubuntu), load a module, or name "
                        "its folder in PKG_CONFIG_PATH")
  endif()
endmacro()

set(MPI_CXX_SKIP_MPICXX ON)
hyperslab_require(libopenmpi-dev MPI COMPONENTS C CXX)
hyperslab_require(g++ OpenMP COMPONENTS CXX)
find_package(Threads REQUIRED)
hyperslab_require(libssl-dev OpenSSL 1.1 COMPONENTS Crypto)
hyperslab_require(libfmt-dev fmt)
hyperslab_require(libspdlog-dev spdlog)
hyperslab_require(nlohmann-json3-dev nlohmann_json)
hyperslab_require(pkg-config PkgConfig)
hyperslab_require_module(libpcre2-dev pcre2 libpcre2-8)
hyperslab_require_module(libutf8proc-dev utf8proc libutf8proc)
hyperslab_require_module(libturbojpeg0-dev turbojpeg libturbojpeg)
hyperslab_require(libpng-dev PNG)
# Boost.Asio has the coroutines of C++20 since 1.74.
hyperslab_require(libboost-program-options-dev Boost 1.74 COMPONENTS program_options)

# yaml-cpp 0.7 names its target yaml-cpp, 0.8 yaml-cpp::yaml-cpp.
hyperslab_require(libyaml-cpp-dev yaml-cpp)
if(NOT TARGET yaml-cpp)
  add_library(yaml-cpp INTERFACE IMPORTED)
  target_link_libraries(yaml-cpp INTERFACE yaml-cpp::yaml-cpp)
endif()

# The serial library is enough (a file per rank); a parallel one includes mpi.h in its headers.
hyperslab_require(libhdf5-dev HDF5 1.10 COMPONENTS C)
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
  hyperslab_require(libgtest-dev GTest)
endif()
