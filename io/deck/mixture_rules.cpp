// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

bool is_mixed(const Config& c) { return !c.data.weights.empty(); }

/// Weights that the deck must give.
std::size_t weights_asked(const Config& c) {
  return c.data.train.size() * (1 + c.data.weight_steps.size());
}

/// True if every row of weights has one above 0.
bool has_weight_in_every_row(const Config& c) {
  const std::size_t sources = c.data.train.size();
  for (std::size_t first = 0; first < c.data.weights.size(); first += sources) {
    const auto row = c.data.weights.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::accumulate(row, row + static_cast<std::ptrdiff_t>(sources), 0.0) <= 0) return false;
  }
  return true;
}

constexpr std::array kMixtureRules = {
    Rule{"data.weights", "data.train data.weight_steps",
         "empty, or as many as data.train has entries, and as many again for each of "
         "data.weight_steps",
         [](const Config& c, const Surroundings&) {
           return !is_mixed(c) || c.data.weights.size() == weights_asked(c);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "found {} numbers, expected {}: one for each of the {} entries of data.train{}",
               c.data.weights.size(), weights_asked(c), c.data.train.size(),
               c.data.weight_steps.empty() ? "" : ", and again for each of data.weight_steps");
         }},
    Rule{"data.weights", "data.train data.weight_steps", "one above 0 at every time",
         [](const Config& c, const Surroundings&) {
           return !is_mixed(c) || c.data.weights.size() != weights_asked(c) ||
                  has_weight_in_every_row(c);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "all are 0 at some time, so that no sample could come: give one above 0";
         }},
    Rule{"data.weights", "data.train model.family data.validation_fraction",
         "empty if data.train is synthetic or names images, and with data.validation_fraction",
         [](const Config& c, const Surroundings&) {
           const bool is_generated =
               std::ranges::find(c.data.train, "synthetic") != c.data.train.end();
           return !is_mixed(c) ||
                  (!is_generated && !c.model.is_of_images() && c.data.validation_fraction == 0);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "only token files are mixed, and data.validation names what they are validated "
                  "on: leave data.weights out, or give files and leave data.validation_fraction "
                  "out";
         }},
    Rule{"data.weight_steps", "data.weights", "ascending; empty if data.weights is",
         [](const Config& c, const Surroundings&) {
           return std::ranges::is_sorted(c.data.weight_steps, std::less_equal<>()) &&
                  (is_mixed(c) || c.data.weight_steps.empty());
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (!is_mixed(c)) {
             return "steps from which other weights hold, and there are none: give data.weights";
           }
           return "each step must come after the one before";
         }},
    Rule{"train.epochs", "data.weights", "0 with data.weights",
         [](const Config& c, const Surroundings&) { return !is_mixed(c) || c.train.epochs == 0; },
         [](const Config&, const Surroundings&) -> std::string {
           return "files that are mixed by weights have epochs of their own: give train.steps";
         }},
};

}  // namespace

std::span<const Rule> mixture_rules() { return kMixtureRules; }

}  // namespace hyperslab::deck
