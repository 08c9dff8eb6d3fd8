// SPDX-License-Identifier: Apache-2.0
// Faults of a GPU that NVIDIA's driver reports: clocks that are held back, memory errors.
#pragma once

#include <string>

namespace hyperslab::run {

/// The functions of libnvidia-ml.so.1 that are asked, under their names there less "nvml"; they
/// return 0 for success. A null one is not asked.
struct Nvml {
  using Device = void*;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*handle_by_bus_id)(const char* bus_id, Device* device) = nullptr;
  int (*throttle_reasons)(Device device, unsigned long long* reasons) = nullptr;
  int (*clock)(Device device, int kind, unsigned* mhz) = nullptr;
  int (*max_clock)(Device device, int kind, unsigned* mhz) = nullptr;
  /// Since the driver was loaded, of the device.
  int (*ecc_errors)(Device device, int kind, int counter, unsigned long long* count) = nullptr;
  int (*remapped_rows)(Device device, unsigned* corrected, unsigned* uncorrected,
                       unsigned* is_pending, unsigned* has_failed) = nullptr;
};

/// The problem of the GPU at this PCI bus id, one line without its end: "its clock is held back by
/// heat (1200 of 1980 MHz); ...". Empty: nothing, or the driver reports none.
[[nodiscard]] std::string gpu_problem(const Nvml& nvml, const std::string& bus_id);

/// gpu_problem by the driver's library, if there is one.
[[nodiscard]] std::string gpu_problem(const std::string& bus_id);

}  // namespace hyperslab::run
