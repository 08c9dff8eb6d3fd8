// SPDX-License-Identifier: Apache-2.0
#include "cuda.hpp"

#include <cuda_runtime_api.h>

#include <array>

#include "cuda_check.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::cuda_runtime {

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status != cudaErrorMemoryAllocation) {
    check(status, "cudaMalloc");
    return memory;
  }
  (void)cudaGetLastError();
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  throw OutOfMemory("on " + device_name() + " of " + std::to_string(total) + " bytes", bytes, free);
}

void release(void* memory) noexcept { log_if_failed(cudaFree(memory), "cudaFree"); }

void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw Error(ExitCode::device,
                "out of page-locked host memory: " + std::to_string(bytes) +
                    " bytes were asked for; raise the limit of locked memory (ulimit -l)");
  }
  check(status, "cudaHostAlloc");
  return memory;
}

void* device_address(void* pinned) {
  void* address = nullptr;
  check(cudaHostGetDevicePointer(&address, pinned, 0), "cudaHostGetDevicePointer");
  return address;
}

void release_pinned(void* memory) noexcept { log_if_failed(cudaFreeHost(memory), "cudaFreeHost"); }

namespace {

thread_local bool prefers_streams = false;
thread_local bool makes_main_streams = false;

}  // namespace

void prefer_streams() noexcept { prefers_streams = true; }
void make_main_streams(bool main) noexcept { makes_main_streams = main; }

CUstream_st* make_stream() {
  int least = 0;
  int priority = makes_main_streams ? kMainStreamPriority : 0;
  if (prefers_streams) {
    check(cudaDeviceGetStreamPriorityRange(&least, &priority), "cudaDeviceGetStreamPriorityRange");
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
        "cudaStreamCreateWithPriority");
  return stream;
}

void destroy_stream(CUstream_st* stream) noexcept {
  log_if_failed(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void synchronize(CUstream_st* stream) {
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void copy(CUstream_st* stream, void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

void copy_blocking(void* to, const void* from, std::size_t bytes) {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void fill_blocking(void* to, unsigned char value, std::size_t bytes) {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemset(to, value, bytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

Versions refused_versions() noexcept {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  Versions versions;
  if (status != cudaErrorInsufficientDriver) return versions;
  (void)cudaDriverGetVersion(&versions.driver);
  (void)cudaRuntimeGetVersion(&versions.program);
  return versions;
}

void use_device(int index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw Error(ExitCode::device, "GPU " + std::to_string(index) +
                                      " was asked for, this process "
                                      "sees " +
                                      std::to_string(count) +
                                      "; see CUDA_VISIBLE_DEVICES, or set run.device: cpu");
  }
  check(cudaSetDevice(index), "cudaSetDevice");
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

std::string device_name() {
  if (device_count() == 0) return {};
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  return properties.name;
}

std::string device_bus_id() {
  if (device_count() == 0) return {};
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), text.size(), current_device()), "cudaDeviceGetPCIBusId");
  return text.data();
}

}  // namespace hyperslab::cuda_runtime
