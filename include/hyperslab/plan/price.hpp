// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/plan/interpolate.hpp"
#include "hyperslab/plan/machine_file.hpp"

namespace hyperslab::plan {

/// The ranks of a group on their nodes.
struct GroupLayout {
  int ranks = 1;
  int nodes = 1;           ///< that its ranks lie on
  int ranks_per_node = 1;  ///< ranks of the group on each node
};

/// Seconds of operations on a machine of which some sizes were measured. An op takes the time of a
/// perfect implementation, max(FLOPs / peak, bytes / bandwidth) and a microsecond for each kernel,
/// divided by its efficiency. The logarithm of that is an Interpolation between the measured sizes
/// of the same op, in the logarithms of FLOPs, bytes and operand sizes.
class Prices {
 public:
  /// Throws Error(usage) if the machine has no ops of this precision; bf16 and fp16 stand in for
  /// each other.
  Prices(const MachineFile& machine, Precision precision);

  /// Its kernels, and the pause before each.
  [[nodiscard]] double of_op(const Operation& op);
  /// Seconds of `call` with a buffer of `bytes`. Between nodes the links of the group's ranks on a
  /// node work together; if the machine file does not say the network's rate, all ranks are on one
  /// node.
  [[nodiscard]] double of_collective(std::string_view group, std::string_view call,
                                     const GroupLayout& layout, double bytes) const;
  /// Seconds of a transfer between the host and the device (kHostLink). Throws Error(usage) if the
  /// machine file lacks the rate.
  [[nodiscard]] double of_transfer(double bytes) const;
  /// The share of its speed that computation loses while a collective of the group runs beside it.
  [[nodiscard]] double overlap_cost(std::string_view group) const;

  /// The least that ops take together under the machine's power limit; 0 if it is not known.
  [[nodiscard]] double sustained_seconds(const OperationList& operations) const;

  [[nodiscard]] bool knows_network() const { return machine_.network_bytes_per_second > 0; }

  [[nodiscard]] const MachineFile& machine() const { return machine_; }
  /// FLOP/s that utilization is stated against: the peak, or the fastest measured product.
  [[nodiscard]] double peak_flops() const { return peak_; }
  /// True if the machine file says the peak, as those of GPUs do.
  [[nodiscard]] bool knows_peak() const { return knows_peak_; }
  /// Ops that were never measured on the machine, which take the efficiency of all others.
  [[nodiscard]] const std::vector<std::string>& unknown_ops() const { return unknown_; }

 private:
  [[nodiscard]] std::string_view measured(std::string_view call) const;
  /// The measured sizes of one op with one number of operands.
  struct Known {
    std::vector<Interpolation::Point> points;
    std::vector<double> kernels;                ///< kernels of each point
    std::optional<Interpolation> efficiency{};  ///< its logarithm
  };
  /// The time of one call of an op beside its ideal time.
  struct Found {
    double log_efficiency = 0;
    double kernels = 1;
  };
  [[nodiscard]] double ideal_seconds(const OpSize& size, double kernels) const;
  [[nodiscard]] Found find(const Operation& op);
  [[nodiscard]] double seconds_of(const Operation& op);

  const MachineFile& machine_;
  double peak_ = 0;
  bool knows_peak_ = false;
  double bandwidth_ = 0;
  double sustained_flops_ = 0;                                            ///< 0: not known
  std::map<std::string, std::map<std::size_t, Known>, std::less<>> ops_;  ///< by coordinates
  std::map<std::string, Found, std::less<>> means_;                       ///< over all sizes
  Found mean_{};                                                          ///< over all ops
  /// Prices of earlier calls, by FLOPs, bytes and extents: steps repeat their ops.
  std::map<std::string_view, std::map<std::vector<double>, double>> asked_;
  std::vector<std::string> unknown_;
};

}  // namespace hyperslab::plan
