// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/price.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hyperslab/core/error.hpp"

namespace hyperslab::plan {
namespace {

/// The time of the shortest kernels, at which efficiency cannot be judged.
constexpr double kSecondsPerKernel = 1e-6;

/// Operands that are absent at the end do not count: an op may have gained them since its times
/// were measured.
std::vector<double> features_of(const OpSize& size) {
  std::vector<double> features = {std::log1p(size.flops), std::log1p(size.bytes)};
  std::vector<OpSize::Extent> operands = size.operands;
  while (!operands.empty() && operands.back() == OpSize::Extent{}) operands.pop_back();
  for (const OpSize::Extent& extent : operands) {
    features.push_back(std::log1p(extent.rows));
    features.push_back(std::log1p(extent.columns));
  }
  return features;
}

/// Around a ring, the share of the buffer's bytes that a rank sends.
double ring_share(std::string_view call, int ranks) {
  if (call == "send" || call == "broadcast") return 1;
  const double others = static_cast<double>(ranks - 1) / ranks;
  return call == "all_reduce" ? 2 * others : others;
}

/// Hops that a ring's last byte takes one after the other.
int ring_hops(std::string_view call, int ranks) {
  if (call == "send" || call == "all_to_all") return 1;
  return call == "all_reduce" ? 2 * (ranks - 1) : ranks - 1;
}

/// A group with the same limit of NCCL's blocks, for machine files that lack the group itself.
std::string_view twin_of(std::string_view group) {
  for (const char* const of_layers : {"expert", "context", "key_value"}) {
    if (group == of_layers) return "tensor";
  }
  for (const char* const of_gradients : {"shard", "replica", "expert_data", "expert_shard"}) {
    if (group == of_gradients) return "data";
  }
  return group;
}

/// Tells how far a measured row is from a group: the same group comes before its twin, and then the
/// number of ranks counts.
double distance_of(const CollectiveRow& row, std::string_view group, int ranks) {
  constexpr double kTwin = 100;
  constexpr double kOtherGroup = 200;
  const double of_group = row.group == group            ? 0
                          : row.group == twin_of(group) ? kTwin
                                                        : kOtherGroup;
  return of_group + std::abs(std::log2(static_cast<double>(row.ranks) / ranks));
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
    // Beyond the largest size every byte costs as much as there.
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
  knows_peak_ = peak != machine.peak_flops.end() && peak->second > 0;
  peak_ = knows_peak_ ? peak->second : fastest;
  const auto sustained = machine.sustained_flops.find(std::string(name_of(precision)));
  if (sustained != machine.sustained_flops.end()) sustained_flops_ = sustained->second;
  std::map<std::string, double, std::less<>> counts;
  for (const OpRow& row : rows) {
    const double efficiency = std::log(ideal_seconds(row.size, row.kernels) / row.seconds);
    Interpolation::Point point{features_of(row.size), efficiency};
    Known& known = ops_[row.op][point.at.size()];
    known.points.push_back(std::move(point));
    known.kernels.push_back(row.kernels);
    const double count = ++counts[row.op];
    const auto take = [&](Found& mean, double number) {
      mean.log_efficiency += (efficiency - mean.log_efficiency) / number;
      mean.kernels += (row.kernels - mean.kernels) / number;
    };
    take(means_[row.op], count);
    take(mean_, static_cast<double>(&row - rows.data()) + 1);
  }
  for (auto& [op, by_size] : ops_) {
    for (auto& [coordinates, known] : by_size) known.efficiency.emplace(known.points);
  }
}

double Prices::ideal_seconds(const OpSize& size, double kernels) const {
  return kSecondsPerKernel * kernels + std::max(size.flops / peak_, size.bytes / bandwidth_);
}

Prices::Found Prices::find(const Operation& op) {
  const auto found = ops_.find(op.name);
  if (found == ops_.end()) {
    if (std::ranges::find(unknown_, op.name) == unknown_.end()) unknown_.emplace_back(op.name);
    return mean_;
  }
  std::vector<double> features = features_of(op.size);
  // Calls with as many features, else with the next lower number; further features are left out.
  auto known = found->second.upper_bound(features.size());
  if (known == found->second.begin()) return means_.find(op.name)->second;
  --known;
  features.resize(known->first);
  const auto nearest = std::ranges::min_element(
      known->second.points, {},
      [&](const Interpolation::Point& point) { return squared_distance(point.at, features); });
  const auto index = static_cast<std::size_t>(nearest - known->second.points.begin());
  return {known->second.efficiency->at(features), known->second.kernels[index]};
}

double Prices::of_op(const Operation& op) {
  std::vector<double> size = {op.size.flops, op.size.bytes};
  for (const OpSize::Extent& extent : op.size.operands) {
    size.push_back(extent.rows);
    size.push_back(extent.columns);
  }
  const auto [entry, is_new] = asked_[op.name].try_emplace(std::move(size), 0);
  if (is_new) entry->second = seconds_of(op);
  return entry->second;
}

double Prices::seconds_of(const Operation& op) {
  const Found found = find(op);
  return ideal_seconds(op.size, found.kernels) / std::exp(found.log_efficiency) +
         machine_.launch_seconds * found.kernels;
}

/// A rank sends as many bytes in an all_gather as in an all_to_all, which older files lack.
std::string_view Prices::measured(std::string_view call) const {
  const bool is_there = std::ranges::find(machine_.collectives, call, &CollectiveRow::call) !=
                        machine_.collectives.end();
  return call == "all_to_all" && !is_there ? "all_gather" : call;
}

double Prices::of_collective(std::string_view group, std::string_view asked,
                             const GroupLayout& layout, double bytes) const {
  if (layout.ranks < 2 || bytes <= 0) return 0;
  const std::string_view call = measured(asked);
  const int inside = std::max(2, std::min(layout.ranks, machine_.ranks_per_node));
  const auto distance = [&](const CollectiveRow& row) { return distance_of(row, group, inside); };
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
  // NCCL's own estimate of a hop over NVLink (src/graph/tuning.cc, hwLat of rings, Simple).
  constexpr double kHopSeconds = 3.4e-6;
  const int hops = ring_hops(call, inside) - ring_hops(call, rows.front()->ranks);
  const double seconds = interpolate(rows, bytes * share / measured_share) +
                         (machine_.device == "cuda" ? kHopSeconds * std::max(0, hops) : 0);
  if (layout.nodes == 1 || !knows_network()) return seconds;
  const double links = machine_.network_bytes_per_second * layout.ranks_per_node;
  return std::max(seconds, bytes * share / links) +
         machine_.network_latency_seconds * std::ceil(std::log2(layout.nodes));
}

double Prices::sustained_seconds(const OperationList& operations) const {
  if (sustained_flops_ <= 0 || machine_.sustained_bytes_per_second <= 0) return 0;
  double seconds = 0;
  for (const Operation& op : operations) {
    if (op.kind != Operation::Kind::compute) continue;
    seconds +=
        op.size.flops / sustained_flops_ + op.size.bytes / machine_.sustained_bytes_per_second;
  }
  return seconds;
}

double Prices::of_transfer(double bytes) const {
  if (machine_.host_bytes_per_second > 0) return bytes / machine_.host_bytes_per_second;
  throw Error(ExitCode::usage,
              fmt::format("the machine file of {} has no host_bytes_per_second, on which "
                          "memory.optimizer: host depends; measure with hyperslab bench DECK "
                          "--machine FILE",
                          machine_.name));
}

double Prices::overlap_cost(std::string_view group) const {
  const auto found = machine_.overlap_cost.find(std::string(group));
  return found == machine_.overlap_cost.end() ? 0 : found->second;
}

}  // namespace hyperslab::plan
