// SPDX-License-Identifier: Apache-2.0
// The meaning of the names of CUDA functions and kernels.
#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cctype>
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

bool is_word(char c) { return std::islower(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Erases "hyperslab::" with the namespaces that follow it, which are words in lower case.
void erase_namespaces(std::string& text) {
  constexpr std::string_view kRoot = "hyperslab::";
  for (std::size_t at = text.find(kRoot); at != std::string::npos; at = text.find(kRoot, at)) {
    std::size_t end = at + kRoot.size();
    for (std::size_t i = end; i < text.size() && is_word(text[i]);) {
      ++i;
      if (text.compare(i, 2, "::") != 0) continue;
      i += 2;
      end = i;
    }
    text.erase(at, end - at);
  }
}

/// The index at which the list of parameters begins: the last '(' that is outside of template
/// arguments.
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
  // Host memory that is not page-locked makes an asynchronous copy wait, too; names do not show it.
  if (starts_with_any(name, kCopies)) {
    return contains(name, "Async") ? CallKind::other : CallKind::synchronization;
  }
  if (name.starts_with("cudaGraphLaunch") || name.starts_with("cuGraphLaunch")) {
    return CallKind::graph_launch;
  }
  // The driver's cuLaunch and cuLaunchGrid are names from before cuLaunchKernel.
  if (name.starts_with("cudaLaunch") || name.starts_with("cuLaunch")) return CallKind::launch;
  return CallKind::other;
}

std::string readable_kernel(const std::string& name) {
  std::string text = demangled(name);
  if (text.starts_with("void ")) text.erase(0, 5);
  erase_all(text, "(anonymous namespace)::");
  erase_namespaces(text);
  text.erase(parameters_at(text));
  return text;
}

}  // namespace hyperslab
