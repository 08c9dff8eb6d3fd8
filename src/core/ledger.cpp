// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/ledger.hpp"

#include <utility>

namespace hyperslab {
namespace {

void accumulate(Work& sum, const Work& part) {
  sum.flops += part.flops;
  sum.bytes += part.bytes;
  sum.calls += part.calls;
  sum.paths.insert(part.paths.begin(), part.paths.end());
}

}  // namespace

void Ledger::add(const WorkLabel& label, double flops, double bytes) {
  Work& row = rows_[{std::string(label.component), std::string(label.op)}];
  accumulate(row, {flops, bytes, 1});
  if (!label.path.empty()) row.paths.emplace(label.path);
}

void Ledger::add_kernel(std::string_view op, const std::string& problem, KernelChoice choice) {
  choice.calls = 0;
  ++kernels_.try_emplace({std::string(op), problem}, std::move(choice)).first->second.calls;
}

const Work* Ledger::find(std::string_view component, std::string_view op) const {
  const auto row = rows_.find({std::string(component), std::string(op)});
  return row == rows_.end() ? nullptr : &row->second;
}

Work Ledger::total() const {
  Work sum;
  for (const auto& [key, work] : rows_) accumulate(sum, work);
  return sum;
}

Work Ledger::component(std::string_view name) const {
  Work sum;
  for (const auto& [key, work] : rows_) {
    if (key.first == name) accumulate(sum, work);
  }
  return sum;
}

}  // namespace hyperslab
