// SPDX-License-Identifier: Apache-2.0
#include "preflight_gpu.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

namespace hyperslab::run {
namespace {

// Values of nvml.h.
constexpr int kClockSm = 1;                            // NVML_CLOCK_SM
constexpr int kUncorrected = 1;                        // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int kSinceDriverWas = 0;                     // NVML_VOLATILE_ECC
constexpr unsigned long long kHeat = 0x20 | 0x40;      // software and hardware thermal slowdown
constexpr unsigned long long kPowerBrake = 0x80;       // the supply asks for less
constexpr unsigned long long kHardwareSlowdown = 0x8;  // heat or power brake, on older drivers

void add(std::string& text, const std::string& more) { text += (text.empty() ? "" : "; ") + more; }

std::string clock_problem(const Nvml& nvml, Nvml::Device device) {
  unsigned long long reasons = 0;
  if (nvml.throttle_reasons == nullptr || nvml.throttle_reasons(device, &reasons) != 0) return {};
  const bool heat = (reasons & kHeat) != 0;
  const bool brake = (reasons & kPowerBrake) != 0;
  if (!heat && !brake && (reasons & kHardwareSlowdown) == 0) return {};
  std::string text = fmt::format("its clock is held back by {}", heat    ? "heat"
                                                                 : brake ? "the power brake"
                                                                         : "the hardware");
  unsigned now = 0;
  unsigned most = 0;
  if (nvml.clock != nullptr && nvml.max_clock != nullptr &&
      nvml.clock(device, kClockSm, &now) == 0 && nvml.max_clock(device, kClockSm, &most) == 0) {
    text += fmt::format(" ({} of {} MHz)", now, most);
  }
  return text;
}

std::string memory_problem(const Nvml& nvml, Nvml::Device device) {
  std::string text;
  unsigned long long count = 0;
  if (nvml.ecc_errors != nullptr &&
      nvml.ecc_errors(device, kUncorrected, kSinceDriverWas, &count) == 0 && count > 0) {
    add(text, fmt::format("its memory had {} error{} that ECC could not correct", count,
                          count == 1 ? "" : "s"));
  }
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned is_pending = 0;
  unsigned has_failed = 0;
  if (nvml.remapped_rows == nullptr ||
      nvml.remapped_rows(device, &corrected, &uncorrected, &is_pending, &has_failed) != 0) {
    return text;
  }
  if (has_failed != 0) add(text, "rows of its memory could not be replaced: retire the GPU");
  if (is_pending != 0) add(text, "rows of its memory wait to be replaced: reset the GPU");
  return text;
}

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

Nvml nvml_of(void* library) {
  Nvml nvml;
  find(library, "nvmlInit_v2", nvml.init);
  find(library, "nvmlShutdown", nvml.shutdown);
  find(library, "nvmlDeviceGetHandleByPciBusId_v2", nvml.handle_by_bus_id);
  find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", nvml.throttle_reasons);
  find(library, "nvmlDeviceGetClockInfo", nvml.clock);
  find(library, "nvmlDeviceGetMaxClockInfo", nvml.max_clock);
  find(library, "nvmlDeviceGetTotalEccErrors", nvml.ecc_errors);
  find(library, "nvmlDeviceGetRemappedRows", nvml.remapped_rows);
  return nvml;
}

}  // namespace

std::string gpu_problem(const Nvml& nvml, const std::string& bus_id) {
  if (nvml.init == nullptr || nvml.shutdown == nullptr || nvml.handle_by_bus_id == nullptr) {
    return {};
  }
  if (nvml.init() != 0) return {};
  std::string text;
  Nvml::Device device = nullptr;
  if (nvml.handle_by_bus_id(bus_id.c_str(), &device) == 0) {
    text = clock_problem(nvml, device);
    const std::string memory = memory_problem(nvml, device);
    if (!memory.empty()) add(text, memory);
  }
  (void)nvml.shutdown();
  return text;
}

std::string gpu_problem(const std::string& bus_id) {
  const auto close = [](void* library) { (void)dlclose(library); };
  const std::unique_ptr<void, decltype(close)> library(
      dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), close);
  return library ? gpu_problem(nvml_of(library.get()), bus_id) : std::string();
}

}  // namespace hyperslab::run
