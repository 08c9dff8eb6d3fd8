# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: HYPERSLAB_CUDA_ENABLED says whether this build has one. ON makes every missing
# part an error; AUTO builds it where a toolkit and a driver are, and says what it does.
#   hyperslab_cudnn           headers of cuDNN; its library is opened at run time
#   hyperslab_cudnn_frontend  headers of cudnn-frontend
#   hyperslab_nccl            NCCL
#   hyperslab_nvjpeg          headers of nvJPEG, if there are any; its library is opened at run time
set(HYPERSLAB_CUDA_ENABLED OFF)
if(NOT HYPERSLAB_CUDA)
  return()
endif()
string(TOUPPER "${HYPERSLAB_CUDA}" hyperslab_cuda_wish)

find_package(CUDAToolkit QUIET)
set(hyperslab_cuda_missing "")
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  list(APPEND hyperslab_cuda_missing "a CUDA toolkit with nvcc (CUDAToolkit_ROOT)")
endif()

# A driver is where its device files are; nvidia-smi answers where they are hidden.
set(hyperslab_cuda_driver OFF)
if(EXISTS /dev/nvidiactl OR EXISTS /proc/driver/nvidia/version)
  set(hyperslab_cuda_driver ON)
else()
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE smi OUTPUT_QUIET ERROR_QUIET)
  if(smi EQUAL 0)
    set(hyperslab_cuda_driver ON)
  endif()
endif()
# jobs/lib.sh installs the parts that this file names.
set(hyperslab_cuda_missing_file "${PROJECT_BINARY_DIR}/cuda_missing.txt")
file(REMOVE "${hyperslab_cuda_missing_file}")
if(hyperslab_cuda_missing AND hyperslab_cuda_driver)
  file(WRITE "${hyperslab_cuda_missing_file}" "toolkit\n")
endif()
if(hyperslab_cuda_wish STREQUAL AUTO AND (hyperslab_cuda_missing OR NOT hyperslab_cuda_driver))
  message(STATUS "CUDA backend: off, no toolkit or no driver here (-DHYPERSLAB_CUDA=ON builds it all the same)")
  return()
endif()

# The wheels nvidia-cudnn-cu*, nvidia-cudnn-frontend, nvidia-nccl-cu* and nvidia-nvjpeg unpack below a Python's
# site-packages, or where jobs/lib.sh puts them.
set(hyperslab_site_packages "")
find_program(hyperslab_python NAMES python3)
mark_as_advanced(hyperslab_python)
if(hyperslab_python)
  execute_process(COMMAND ${hyperslab_python} -c
    "import site, sysconfig; print(';'.join(dict.fromkeys([sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), *site.getsitepackages(), site.getusersitepackages()])))"
    OUTPUT_VARIABLE hyperslab_site_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
list(PREPEND hyperslab_site_packages "${PROJECT_BINARY_DIR}/wheels")
set(hyperslab_cudnn_roots ${CUDNN_ROOT} $ENV{CUDNN_ROOT})
set(hyperslab_nccl_roots ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME})
set(hyperslab_nvjpeg_roots ${NVJPEG_ROOT} $ENV{NVJPEG_ROOT})
foreach(folder IN LISTS hyperslab_site_packages)
  file(GLOB wheels "${folder}/nvidia/cu*" "${folder}/nvidia/nvjpeg")
  list(APPEND hyperslab_nvjpeg_roots ${wheels})
  list(APPEND hyperslab_cudnn_roots "${folder}/nvidia/cudnn")
  list(APPEND hyperslab_nccl_roots "${folder}/nvidia/nccl")
endforeach()
list(TRANSFORM hyperslab_site_packages APPEND "/include" OUTPUT_VARIABLE hyperslab_site_includes)

find_path(CUDNN_INCLUDE_DIR cudnn_version.h
  HINTS ${hyperslab_cudnn_roots} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9
  HINTS ${hyperslab_cudnn_roots} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${hyperslab_site_includes})
find_path(NCCL_INCLUDE_DIR nccl.h
  HINTS ${hyperslab_nccl_roots} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
  HINTS ${hyperslab_nccl_roots} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" hyperslab_nccl_version REGEX "define NCCL_VERSION_CODE ")
  string(REGEX REPLACE ".*NCCL_VERSION_CODE +" "" hyperslab_nccl_version "${hyperslab_nccl_version}")
  if(hyperslab_nccl_version LESS 22800)
    unset(NCCL_INCLUDE_DIR CACHE)
    unset(NCCL_LIBRARY CACHE)
  endif()
endif()
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  file(APPEND "${hyperslab_cuda_missing_file}" "nccl\n")
  list(APPEND hyperslab_cuda_missing
    "NCCL 2.28 or newer (libnccl-dev, pip install nvidia-nccl-cu13, NCCL_ROOT, or NCCL_INCLUDE_DIR and NCCL_LIBRARY)")
endif()
if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
  file(APPEND "${hyperslab_cuda_missing_file}" "cudnn\n")
  list(APPEND hyperslab_cuda_missing "cuDNN 9 (CUDNN_ROOT, or CUDNN_INCLUDE_DIR and CUDNN_LIBRARY)")
endif()
if(NOT CUDNN_FRONTEND_INCLUDE_DIR)
  file(APPEND "${hyperslab_cuda_missing_file}" "cudnn-frontend\n")
  list(APPEND hyperslab_cuda_missing
    "the headers of cudnn-frontend (pip install nvidia-cudnn-frontend, or CUDNN_FRONTEND_INCLUDE_DIR)")
endif()
if(hyperslab_cuda_missing)
  list(JOIN hyperslab_cuda_missing "\n  " hyperslab_cuda_list)
  if(hyperslab_cuda_wish STREQUAL AUTO)
    message(WARNING "CUDA backend: off, though this machine has a driver. Missing:\n  ${hyperslab_cuda_list}")
    return()
  endif()
  message(FATAL_ERROR "HYPERSLAB_CUDA=${HYPERSLAB_CUDA}, but missing:\n  ${hyperslab_cuda_list}\n"
                      "Install them, or configure with -DHYPERSLAB_CUDA=OFF")
endif()

# Hopper's warpgroup instructions need 90a; "native" of CMake 3.25 means 90 there.
set(hyperslab_cuda_default 90a)
if(hyperslab_cuda_driver)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE hyperslab_cuda_capabilities ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT hyperslab_cuda_capabilities MATCHES "^9\\.0(\n9\\.0)*$")
    set(hyperslab_cuda_default native)
  endif()
endif()
set(HYPERSLAB_CUDA_ARCHITECTURES "${hyperslab_cuda_default}" CACHE STRING
  "Compute capabilities to build for: native, 80, 90a, ...")
set(CMAKE_CUDA_ARCHITECTURES "${HYPERSLAB_CUDA_ARCHITECTURES}")
set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}" CACHE FILEPATH "CUDA compiler")
set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}" CACHE FILEPATH "Host compiler of nvcc")
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
if(HYPERSLAB_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${HYPERSLAB_CCACHE}")
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# CMake 3.25 does not know that nvcc 12 and newer speak C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(HYPERSLAB_CUDA_ENABLED ON)

add_library(hyperslab_cudnn INTERFACE)
target_include_directories(hyperslab_cudnn SYSTEM INTERFACE "${CUDNN_INCLUDE_DIR}")
target_compile_definitions(hyperslab_cudnn INTERFACE "HYPERSLAB_CUDNN_LIBRARY=\"${CUDNN_LIBRARY}\"")
target_link_libraries(hyperslab_cudnn INTERFACE ${CMAKE_DL_LIBS})
add_library(hyperslab_cudnn_frontend INTERFACE)
target_include_directories(hyperslab_cudnn_frontend SYSTEM INTERFACE "${CUDNN_FRONTEND_INCLUDE_DIR}")
target_link_libraries(hyperslab_cudnn_frontend INTERFACE hyperslab_cudnn)
add_library(hyperslab_nccl INTERFACE)
target_include_directories(hyperslab_nccl SYSTEM INTERFACE "${NCCL_INCLUDE_DIR}")
target_link_libraries(hyperslab_nccl INTERFACE "${NCCL_LIBRARY}")

# Images are decoded by the CPU alone without it.
find_path(NVJPEG_INCLUDE_DIR nvjpeg.h
  HINTS ${hyperslab_nvjpeg_roots} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
if(NVJPEG_INCLUDE_DIR)
  add_library(hyperslab_nvjpeg INTERFACE)
  target_include_directories(hyperslab_nvjpeg SYSTEM INTERFACE "${NVJPEG_INCLUDE_DIR}")
  target_compile_definitions(hyperslab_nvjpeg INTERFACE HYPERSLAB_NVJPEG)
else()
  message(STATUS "nvJPEG: no headers (pip install nvidia-nvjpeg), the CPU decodes images")
endif()

message(STATUS "CUDA backend: on, toolkit ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}, "
               "cuDNN ${CUDNN_LIBRARY}, cudnn-frontend ${CUDNN_FRONTEND_INCLUDE_DIR}, NCCL ${NCCL_LIBRARY}")
