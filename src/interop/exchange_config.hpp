// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// Throws Error(usage) that lists every choice of the model that the library's model of the same
/// family has no counterpart for.
void require_counterpart(const model::ModelSpec& spec, Library library = Library::transformers);

/// Ids that transformers treats apart.
struct SpecialIds {
  std::int64_t bos = -1;          ///< -1: none
  std::vector<std::int64_t> eos;  ///< empty: none
};

/// config.json of transformers.
[[nodiscard]] std::string config_json(const model::ModelSpec& spec, DType dtype,
                                      const SpecialIds& ids);
/// generation_config.json; `ends`: its eos_token_id, where it is not config.json's.
[[nodiscard]] std::string generation_config_json(const SpecialIds& ids,
                                                 const std::vector<std::int64_t>& ends);

/// The contents of a config.json.
struct ForeignConfig {
  model::ModelSpec spec;
  std::vector<std::string> warnings;  ///< ids that cannot be, and kernels slower for their sake
};
/// Reads the text of a config.json; `file` is its name in messages. Throws Error(checkpoint) that
/// names every key that asks for computation not done here, or is not known.
[[nodiscard]] ForeignConfig read_foreign_config(const std::string& text, const std::string& file,
                                                const ImportOptions& options = {});

}  // namespace hyperslab::interop
