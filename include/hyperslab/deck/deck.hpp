// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/core/device.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::deck {

/// Surroundings of a run, against which the rules check a deck.
struct Surroundings {
  int ranks = 1;  ///< that were started
  bool has_cuda_device = false;
  bool for_training = true;  ///< false: eval, generate, bench need no train files or steps
  bool has_cuda_build = kHasCuda;
  bool is_plan = false;  ///< `ranks` were asked for, not started
  /// Beginnings of keys ("data.", "train.steps") that do not matter here: rules about them, or that
  /// read them, are not checked, and none of them is required.
  std::vector<std::string_view> unused = {};
};

/// A rule about keys that combine, a row of the table of rules. The deck reader, the planner, the
/// tests and the README's table read the same rows.
struct Rule {
  /// The deck key that the message names and points at, "parallel.data"; if it is left out, the
  /// message points at one of the same section that the rule reads.
  std::string_view key;
  std::string_view
      reads;  ///< other keys that it reads, separated by blanks; bad ones leave it unchecked
  std::string_view name;  ///< one sentence for the table: the condition
  bool (*holds)(const train::Config&, const Surroundings&);
  /// The numbers found and the nearest legal value.
  std::string (*message)(const train::Config&, const Surroundings&);
};
[[nodiscard]] std::span<const Rule> rules();

/// True if every rule that holds for `before` holds for `after`, which may be laid out over another
/// number of ranks.
[[nodiscard]] bool keeps_rules(const train::Config& before, const train::Config& after,
                               Surroundings surroundings);

/// The first rule that does not hold, as "key: what is wrong"; empty if all hold.
[[nodiscard]] std::string broken_rule(const train::Config& config,
                                      const Surroundings& surroundings);

/// Reads a deck from text; `file` is its name in messages. `overrides` are "path.to.key=value" and
/// win over the text before anything is validated. Every problem - unknown and duplicate keys,
/// wrong types, octal-looking numbers, values out of range, violated rules - is found and reported
/// in one Error(usage), a line each: "deck.yaml:12:3: key: text" (overrides: "--set key=value:
/// text"). Values too large for an override of train.steps, train.epochs or checkpoint.every are
/// cut instead of refused; `cuts`, unless null, gets one line that says what, or nothing.
[[nodiscard]] train::Config read_deck(const std::string& text, const std::string& file,
                                      std::span<const std::string> overrides,
                                      const Surroundings& surroundings,
                                      std::string* cuts = nullptr);

/// Choice for `auto`, `never` or a step; none for any other text.
[[nodiscard]] std::optional<io::ResumeChoice> parse_resume(std::string_view text);
[[nodiscard]] std::string text_of(const io::ResumeChoice& choice);

/// The resolved deck as YAML, every key with its value; reads back to an equal Config.
[[nodiscard]] std::string to_yaml(const train::Config& config);

}  // namespace hyperslab::deck
