// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/deck/reference.hpp"

namespace hyperslab::deck::test {

/// A valid deck for one rank on the CPU.
inline const std::string kValid = R"(run:
  name: tiny
model:
  family: llama
  layers: 2
  width: 48
  heads: 4
  vocabulary: 300
  context: 16
data:
  train: [synthetic]
train:
  steps: 10
  global_batch: 8
)";

/// The text with the first `from` replaced by `to`.
inline std::string with(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  require(at != std::string::npos, "the deck does not hold the text to replace");
  return text.replace(at, from.size(), to);
}

inline train::Config read(const std::string& text, const std::vector<std::string>& overrides = {},
                          const Surroundings& surroundings = {}) {
  return read_deck(text, "deck.yaml", overrides, surroundings);
}

/// The whole message of a refused deck; "accepted" and the code if something else happens.
inline std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {},
                           const Surroundings& surroundings = {}) {
  try {
    (void)read(text, overrides, surroundings);
  } catch (const Error& error) {
    return error.code() == ExitCode::usage ? error.what() : "wrong exit code";
  }
  return "accepted";
}

}  // namespace hyperslab::deck::test
