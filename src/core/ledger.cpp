// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/ledger.hpp"

namespace hyperslab {
namespace {

void accumulate(Work& sum, const Work& part) {
  sum.flops += part.flops;
  sum.bytes += part.bytes;
  sum.calls += part.calls;
}

}  // namespace

void Ledger::add(std::string_view component, std::string_view op, double flops, double bytes) {
  accumulate(rows_[{std::string(component), std::string(op)}], {flops, bytes, 1});
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
