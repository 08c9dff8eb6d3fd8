// SPDX-License-Identifier: Apache-2.0
// Shares of the machine's matrix rate that the steps of a start reached.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "hyperslab/plan/machine_rate.hpp"

namespace hyperslab::run {

/// A rate that was measured while other programs used the machine is too low. The first step that
/// did more than the rate shows it, and from that step on utilization is unknown.
class Utilization {
 public:
  Utilization() = default;
  explicit Utilization(plan::MachineRate rate) : rate_(std::move(rate)) {}

  /// To be called once for each step, in order, before share(). `flops_per_second`: of all ranks
  /// together. The line for the user if this step is the first that did more than the rate.
  std::optional<std::string> judge(std::int64_t step, double flops_per_second);
  /// 0.25: a quarter of the rate. Not a number if the rate is not known or was too low.
  [[nodiscard]] double share(double flops_per_second) const;

 private:
  plan::MachineRate rate_;
};

}  // namespace hyperslab::run
