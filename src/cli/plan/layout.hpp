// SPDX-License-Identifier: Apache-2.0
// The lines of plan about a layout before it is planned, and the units of its numbers.
#pragma once

#include <string>

#include "hyperslab/pipeline/schedule.hpp"
#include "hyperslab/plan/documents.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::cli {

/// The unit of the numbers of a table.
struct Unit {
  const char* name;
  double size;
};
[[nodiscard]] Unit byte_unit(double largest);
[[nodiscard]] Unit flop_unit(double largest);
/// MiB with one decimal, larger units with three.
[[nodiscard]] std::string in(const Unit& unit, double amount);
[[nodiscard]] std::string ranks_text(int ranks);

void print_layout(const train::Config& config, bool training, const plan::DocumentKeys& documents);
/// The share of keys that data.documents: masked leaves; prints nothing for joined ones.
void print_documents(const train::Config& config, const plan::DocumentKeys& documents);
void print_schedule(const pipeline::Program& program);

}  // namespace hyperslab::cli
