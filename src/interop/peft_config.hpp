// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "complaints.hpp"
#include "peft_modules.hpp"

namespace hyperslab::interop {

/// The contents of an adapter_config.json of LoRA.
struct PeftConfig {
  Dim rank = 8;
  double alpha = 8;
  bool rank_scaled = false;
  double dropout = 0;
  std::vector<std::string> targets;         ///< empty: a pattern, or all; the tensors show which
  std::map<std::string, Dim> rank_pattern;  ///< modules that have another rank
  std::map<std::string, double> alpha_pattern;

  [[nodiscard]] Dim rank_of(const AdaptedModule& module) const;
  /// The factor by which PEFT multiplies B A.
  [[nodiscard]] double scale_of(const AdaptedModule& module) const;
};

/// Reads the text of an adapter_config.json; `file` is its name in messages. Complains of every key
/// that asks for computation not done here: a key that is not known must be null, false or empty.
/// Throws Error(checkpoint) for damaged JSON and values of another type.
[[nodiscard]] PeftConfig read_peft_config(const std::string& text, const std::string& file,
                                          Complaints& complaints);

}  // namespace hyperslab::interop
