// SPDX-License-Identifier: Apache-2.0
// What names of CUDA functions and of kernels say.
#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "hyperslab/core/profiler.hpp"

namespace hyperslab {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

template <std::size_t n>
bool starts_with_any(std::string_view text, const std::array<std::string_view, n>& starts) {
  return std::ranges::any_of(starts, [&](std::string_view s) { return text.starts_with(s); });
}

// In the runtime and the driver; releases count, for they wait for the device.
constexpr std::array<std::string_view, 22> kAllocations = {
    "cudaMalloc",          "cudaFree",          "cudaHostAlloc",        "cudaHostRegister",
    "cudaHostUnregister",  "cudaMemPoolCreate", "cudaGraphInstantiate", "cudaArrayCreate",
    "cuMemAlloc",          "cuMemFree",         "cuMemHostAlloc",       "cuMemHostRegister",
    "cuMemHostUnregister", "cuMemCreate",       "cuMemRelease",         "cuMemAddressReserve",
    "cuMemAddressFree",    "cuMemMap",          "cuMemUnmap",           "cuMemPoolCreate",
    "cuGraphInstantiate",  "cuArrayCreate"};
constexpr std::array<std::string_view, 7> kWaits = {
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cudaThreadSynchronize", "cuStreamSynchronize",   "cuCtxSynchronize",
    "cuEventSynchronize"};
constexpr std::array<std::string_view, 4> kCopies = {"cudaMemcpy", "cudaMemset", "cuMemcpy",
                                                     "cuMemset"};

struct Pattern {
  std::string_view part;
  KernelClass kernel_class;
};

// The first that a name contains decides. Names of our own kernels are those of src/ops/cuda;
// each_kernel applies the operation that is its template argument.
constexpr std::array kPatterns = {
    Pattern{"nccl", KernelClass::communication},
    Pattern{"cudnn", KernelClass::attention},
    Pattern{"sdpa", KernelClass::attention},
    Pattern{"flash", KernelClass::attention},
    Pattern{"fmha", KernelClass::attention},
    Pattern{"attend_kernel", KernelClass::attention},
    Pattern{", Update<", KernelClass::optimizer},
    Pattern{"begin_step_kernel", KernelClass::optimizer},
    Pattern{"finalize_step_kernel", KernelClass::optimizer},
    Pattern{"each_kernel", KernelClass::elementwise},
    Pattern{"softmax", KernelClass::softmax},
    Pattern{"loss_kernel", KernelClass::softmax},
    Pattern{"statistics_kernel", KernelClass::softmax},
    Pattern{"norm_kernel", KernelClass::reduction},
    Pattern{"norm_backward_kernel", KernelClass::reduction},
    Pattern{"sum_partials_kernel", KernelClass::reduction},
    Pattern{"column_sums_kernel", KernelClass::reduction},
    Pattern{"squares_kernel", KernelClass::reduction},
    Pattern{"square_kernel", KernelClass::reduction},
    Pattern{"runs_kernel", KernelClass::reduction},
    Pattern{"losses_kernel", KernelClass::reduction},
    Pattern{"mark_kernel", KernelClass::other},
    Pattern{"publish_kernel", KernelClass::other},
    Pattern{"nvjet", KernelClass::matmul},
    Pattern{"cutlass", KernelClass::matmul},
    Pattern{"gemm", KernelClass::matmul},
    Pattern{"gemv", KernelClass::matmul},
    Pattern{"cublas", KernelClass::matmul},
    Pattern{"xmma", KernelClass::matmul},
};

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (status != 0 || text == nullptr) return name;
  std::string out = text;
  std::free(text);
  return out;
}

void erase_all(std::string& text, std::string_view part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

/// Where the list of parameters begins: the last '(' that is outside of template arguments.
std::size_t parameters_at(std::string_view text) {
  if (!text.ends_with(')')) return text.size();
  int depth = 0;
  for (std::size_t i = text.size(); i-- > 0;) {
    if (text[i] == ')') ++depth;
    if (text[i] == '(' && --depth == 0) return i;
  }
  return text.size();
}

}  // namespace

std::string_view name_of(CallKind kind) {
  switch (kind) {
    case CallKind::other: return "other";
    case CallKind::allocation: return "allocation";
    case CallKind::synchronization: return "synchronization";
    case CallKind::launch: return "launch";
    case CallKind::graph_launch: return "graph launch";
  }
  return "?";
}

CallKind kind_of_call(std::string_view name) {
  // <<<>>> of CUDA 13 calls __cudaLaunchKernel.
  name.remove_prefix(std::min(name.find_first_not_of('_'), name.size()));
  if (starts_with_any(name, kAllocations)) return CallKind::allocation;
  if (starts_with_any(name, kWaits)) return CallKind::synchronization;
  // Host memory that is not page-locked makes an asynchronous copy wait, too; names cannot tell.
  if (starts_with_any(name, kCopies)) {
    return contains(name, "Async") ? CallKind::other : CallKind::synchronization;
  }
  if (name.starts_with("cudaGraphLaunch") || name.starts_with("cuGraphLaunch")) {
    return CallKind::graph_launch;
  }
  // Of the driver, cuLaunch and cuLaunchGrid are names from before cuLaunchKernel.
  if (name.starts_with("cudaLaunch") || name.starts_with("cuLaunch")) return CallKind::launch;
  return CallKind::other;
}

std::string_view name_of(KernelClass kernel_class) {
  switch (kernel_class) {
    case KernelClass::matmul: return "matmul";
    case KernelClass::attention: return "attention";
    case KernelClass::softmax: return "softmax";
    case KernelClass::elementwise: return "elementwise";
    case KernelClass::reduction: return "reduction";
    case KernelClass::optimizer: return "optimizer";
    case KernelClass::communication: return "communication";
    case KernelClass::other: return "other";
  }
  return "?";
}

KernelClass class_of_kernel(std::string_view name) {
  for (const Pattern& pattern : kPatterns) {
    if (contains(name, pattern.part)) return pattern.kernel_class;
  }
  return KernelClass::other;
}

std::string readable_kernel(const std::string& name) {
  std::string text = demangled(name);
  if (text.starts_with("void ")) text.erase(0, 5);
  erase_all(text, "(anonymous namespace)::");
  erase_all(text, "hyperslab::ops::cuda::");
  erase_all(text, "hyperslab::");
  text.erase(parameters_at(text));
  return text;
}

}  // namespace hyperslab
