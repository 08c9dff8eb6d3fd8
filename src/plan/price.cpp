// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/price.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hyperslab/core/error.hpp"

namespace hyperslab::plan {
namespace {

/// Work that takes this long on a perfect machine is too small to judge efficiency by.
constexpr double kSmallestSeconds = 1e-6;

std::vector<double> features_of(const OpSize& size) {
  std::vector<double> features = {std::log1p(size.flops), std::log1p(size.bytes)};
  for (const OpSize::Extent& extent : size.operands) {
    features.push_back(std::log1p(extent.rows));
    features.push_back(std::log1p(extent.columns));
  }
  return features;
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// Around a ring, what a rank sends of every byte of the buffer.
double ring_share(std::string_view call, int ranks) {
  if (call == "send" || call == "broadcast") return 1;
  const double others = static_cast<double>(ranks - 1) / ranks;
  return call == "all_reduce" ? 2 * others : others;
}

const std::vector<OpRow>& rows_of(const MachineFile& machine, Precision precision) {
  const auto of = [&](Precision wanted) {
    const auto found = machine.ops.find(std::string(name_of(wanted)));
    return found == machine.ops.end() || found->second.empty() ? nullptr : &found->second;
  };
  const std::vector<OpRow>* rows = of(precision);
  if (rows == nullptr && precision == Precision::fp16) rows = of(Precision::bf16);
  if (rows == nullptr && precision == Precision::bf16) rows = of(Precision::fp16);
  if (rows != nullptr) return *rows;
  std::string known;
  for (const auto& [name, list] : machine.ops) known += (known.empty() ? "" : ", ") + name;
  throw Error(ExitCode::usage,
              fmt::format("the machine file of {} has no ops in {}, only in {}; measure with "
                          "hyperslab bench DECK --machine FILE",
                          machine.name, name_of(precision), known.empty() ? "none" : known));
}

/// Seconds at `bytes` between measured sizes of one collective, linear between them; `rows` in
/// ascending order of bytes, at least one.
double interpolate(const std::vector<const CollectiveRow*>& rows, double bytes) {
  const auto above =
      std::ranges::find_if(rows, [&](const CollectiveRow* row) { return row->bytes >= bytes; });
  if (above == rows.begin()) return rows.front()->seconds;
  const CollectiveRow& low = **(above - 1);
  if (above == rows.end()) {
    // Beyond the largest size every byte costs what it costs there.
    if (rows.size() < 2) return low.seconds * bytes / low.bytes;
    const CollectiveRow& before = **(above - 2);
    const double slope = (low.seconds - before.seconds) / (low.bytes - before.bytes);
    return low.seconds + std::max(0.0, slope) * (bytes - low.bytes);
  }
  const CollectiveRow& high = **above;
  const double part = (bytes - low.bytes) / (high.bytes - low.bytes);
  return low.seconds + part * (high.seconds - low.seconds);
}

}  // namespace

Prices::Prices(const MachineFile& machine, Precision precision) : machine_(machine) {
  const std::vector<OpRow>& rows = rows_of(machine, precision);
  double fastest = 0;
  for (const OpRow& row : rows) {
    fastest = std::max(fastest, row.size.flops / row.seconds);
    bandwidth_ = std::max(bandwidth_, row.size.bytes / row.seconds);
  }
  const auto peak = machine.peak_flops.find(std::string(name_of(precision)));
  peak_ = peak == machine.peak_flops.end() || peak->second <= 0 ? fastest : peak->second;
  for (const OpRow& row : rows) {
    Known known{features_of(row.size), ideal_seconds(row.size) / row.seconds, row.kernels};
    all_.push_back(known);
    ops_[row.op].push_back(std::move(known));
  }
}

double Prices::ideal_seconds(const OpSize& size) const {
  return kSmallestSeconds + std::max(size.flops / peak_, size.bytes / bandwidth_);
}

const std::vector<Prices::Known>& Prices::known(const Operation& op) {
  const auto found = ops_.find(op.name);
  if (found != ops_.end()) return found->second;
  if (std::ranges::find(unknown_, op.name) == unknown_.end()) unknown_.emplace_back(op.name);
  return all_;
}

double Prices::of_op(const Operation& op) {
  constexpr double kTiny = 1e-6;
  const std::vector<double> features = features_of(op.size);
  const std::vector<Known>& rows = known(op);
  double weights = 0;
  double efficiency = 0;
  double kernels = 0;
  for (const Known& row : rows) {
    const double distance = squared_distance(features, row.features);
    if (std::isinf(distance)) continue;
    const double weight = 1.0 / std::max(kTiny, distance * distance);
    weights += weight;
    efficiency += weight * std::log(row.efficiency);
    kernels += weight * row.kernels;
  }
  if (weights == 0) {  // with other operands, such as a bias: all are as near
    for (const Known& row : rows) {
      weights += 1;
      efficiency += std::log(row.efficiency);
      kernels += row.kernels;
    }
  }
  return ideal_seconds(op.size) / std::exp(efficiency / weights) +
         machine_.launch_seconds * kernels / weights;
}

double Prices::of_collective(std::string_view group, std::string_view call,
                             const GroupLayout& layout, double bytes) const {
  if (layout.ranks < 2 || bytes <= 0) return 0;
  // The nearest measured: the same call, then the same group, then the number of ranks.
  const int inside = std::max(2, std::min(layout.ranks, machine_.ranks_per_node));
  const auto distance = [&](const CollectiveRow& row) {
    constexpr double kOtherGroup = 100;
    return (row.group == group ? 0 : kOtherGroup) +
           std::abs(std::log2(static_cast<double>(row.ranks) / inside));
  };
  double nearest = std::numeric_limits<double>::infinity();
  for (const CollectiveRow& row : machine_.collectives) {
    if (row.call == call) nearest = std::min(nearest, distance(row));
  }
  std::vector<const CollectiveRow*> rows;
  for (const CollectiveRow& row : machine_.collectives) {
    if (row.call == call && distance(row) == nearest) rows.push_back(&row);
  }
  if (rows.empty()) {
    throw Error(ExitCode::usage,
                fmt::format("the machine file of {} has no {}; measure with mpirun -np N hyperslab "
                            "bench DECK --machine FILE",
                            machine_.name, call));
  }
  std::ranges::sort(rows, {}, &CollectiveRow::bytes);
  const double share = ring_share(call, layout.ranks);
  const double measured_share = ring_share(call, rows.front()->ranks);
  const double seconds = interpolate(rows, bytes * share / measured_share);
  if (layout.nodes == 1 || !knows_network()) return seconds;
  const double links = machine_.network_bytes_per_second * layout.ranks_per_node;
  return std::max(seconds, bytes * share / links) +
         machine_.network_latency_seconds * std::ceil(std::log2(layout.nodes));
}

double Prices::overlap_cost(std::string_view group) const {
  const auto found = machine_.overlap_cost.find(std::string(group));
  return found == machine_.overlap_cost.end() ? 0 : found->second;
}

}  // namespace hyperslab::plan
