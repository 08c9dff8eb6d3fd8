// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hyperslab::io {

/// The ids that end a text. Tokenizer::text_ends() has those that the files of a vocabulary name,
/// with() adds a deck's; whoever ends texts or separates documents asks this object.
struct TextEnds {
  std::int32_t separator = -1;              ///< stands after each document; -1: none
  std::vector<std::int32_t> ids;            ///< each ends a text; the separator is the first
  std::vector<std::int64_t> of_config;      ///< eos_token_id of config.json, as it stands there
  std::vector<std::int64_t> of_generation;  ///< the ids in generation_config.json

  /// Adds an id that ends texts; the first one separates documents. A negative one is none.
  void add(std::int32_t id);
  /// These and `more` (model.eos_tokens).
  [[nodiscard]] TextEnds with(std::span<const std::int64_t> more) const;
};

}  // namespace hyperslab::io
