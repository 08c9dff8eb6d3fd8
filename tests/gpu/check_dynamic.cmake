# SPDX-License-Identifier: Apache-2.0
# cmake -DREADELF=... -DFILES="a;b" -P check_dynamic.cmake
# Nothing that is shipped names the CUDA driver: it must start without one.
foreach(file IN LISTS FILES)
  if(file MATCHES "\\.a$")
    continue()
  endif()
  execute_process(COMMAND "${READELF}" -d "${file}" OUTPUT_VARIABLE dynamic RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${READELF} -d ${file} ended with ${status}")
  endif()
  if(dynamic MATCHES "\\[libcuda\\.so")
    message(FATAL_ERROR "${file} names libcuda in its dynamic section:\n${dynamic}")
  endif()
  if(NOT dynamic MATCHES "\\[libcudart\\.so")
    message(FATAL_ERROR "${file} does not name the CUDA runtime, so this build is not what is tested")
  endif()
endforeach()
