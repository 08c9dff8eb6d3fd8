// SPDX-License-Identifier: Apache-2.0
// Rules of keys about rotary positions.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "nearest.hpp"
#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using model::Position;
using model::RopeScaling;
using train::Config;

bool has_rope(const Config& c) { return c.model.position == Position::rope; }

/// True if the model's width and heads give a head's width.
bool has_head_width(const Config& c) {
  return c.model.own_head_width > 0 || divides(c.model.heads, c.model.width);
}
/// True if the features of a head of so many that are turned are an even number.
bool turns_pairs(const Config& c, std::int64_t head_width) {
  const double turned = static_cast<double>(head_width) * c.model.rope.fraction;
  return turned >= 2 && std::fmod(turned, 2) == 0;
}

std::string pairs_message(const Config& c, const Surroundings&) {
  const auto& model = c.model;
  if (model.rope.fraction != 1) {
    return fmt::format(
        "rope turns pairs, and model.rotary_fraction {} of a head of {} features is {}: give a "
        "fraction that leaves an even number",
        model.rope.fraction, model.head_width(),
        static_cast<double>(model.head_width()) * model.rope.fraction);
  }
  if (model.own_head_width > 0) {
    return fmt::format("rope turns pairs, and model.head_width {} is odd; use an even one",
                       model.own_head_width);
  }
  const auto nearest = nearest_heads(c);
  return fmt::format("rope turns pairs, and the head width {} ({} / {}) is odd; {}",
                     model.head_width(), model.width, model.heads,
                     nearest == "0" ? "use an even width" : "nearest heads: " + nearest);
}

bool needs_original(const Config& c) {
  return c.model.rope.scaling == RopeScaling::llama3 || c.model.rope.scaling == RopeScaling::yarn;
}

constexpr std::array kRopeRules = {
    Rule{"model.heads", "model.width model.head_width model.position model.rotary_fraction",
         "with rope, the features of a head that are turned are an even number",
         [](const Config& c, const Surroundings&) {
           return !has_rope(c) || !has_head_width(c) || turns_pairs(c, c.model.head_width());
         },
         pairs_message},
    Rule{"model.rotary_fraction", "model.position", "1 without rope",
         [](const Config& c, const Surroundings&) {
           return has_rope(c) || c.model.rope.fraction == 1;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "nothing is turned without rope: set model.position to rope, or leave it out";
         }},
    Rule{"model.rope_scaling", "model.position", "none without rope",
         [](const Config& c, const Surroundings&) {
           return has_rope(c) || c.model.rope.scaling == RopeScaling::none;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "there are no angles without rope: set model.position to rope, or leave it out";
         }},
    Rule{"model.rope_factor", "model.rope_scaling", "at least 1, and 1 without model.rope_scaling",
         [](const Config& c, const Surroundings&) {
           const auto& rope = c.model.rope;
           return rope.scaling == RopeScaling::none ? rope.factor == 1 : rope.factor >= 1;
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (c.model.rope.scaling != RopeScaling::none) {
             return fmt::format("found {}, which would squeeze positions; give 1 or more",
                                c.model.rope.factor);
           }
           return "it does nothing without model.rope_scaling: choose linear, llama3 or yarn";
         }},
    Rule{"model.rope_original_context", "model.rope_scaling",
         "given with llama3 and yarn, and only there",
         [](const Config& c, const Surroundings&) {
           return needs_original(c) == (c.model.rope.original_context > 0);
         },
         [](const Config& c, const Surroundings&) -> std::string {
           return needs_original(c) ? "give the tokens of a sample that the model was trained on"
                                    : "it goes with model.rope_scaling llama3 and yarn";
         }},
    Rule{"model.rope_high_factor", "model.rope_low_factor model.rope_scaling",
         "above model.rope_low_factor with llama3",
         [](const Config& c, const Surroundings&) {
           const auto& rope = c.model.rope;
           return rope.scaling != RopeScaling::llama3 || rope.high_factor > rope.low_factor;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} is not above model.rope_low_factor {}", c.model.rope.high_factor,
                              c.model.rope.low_factor);
         }},
    Rule{"model.rope_beta_fast", "model.rope_beta_slow model.rope_scaling",
         "above model.rope_beta_slow with yarn",
         [](const Config& c, const Surroundings&) {
           const auto& rope = c.model.rope;
           return rope.scaling != RopeScaling::yarn || rope.beta_fast > rope.beta_slow;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} is not above model.rope_beta_slow {}", c.model.rope.beta_fast,
                              c.model.rope.beta_slow);
         }},
    Rule{"model.rope_theta", "model.rope_scaling", "above 1 with yarn",
         [](const Config& c, const Surroundings&) {
           return c.model.rope.scaling != RopeScaling::yarn || c.model.rope.theta > 1;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("yarn needs wavelengths that grow, found {}", c.model.rope.theta);
         }},
};

}  // namespace

std::string nearest_heads(const Config& c) {
  return nearest_divisors(c.model.width, c.model.heads, [&](std::int64_t heads) {
    return !has_rope(c) || turns_pairs(c, c.model.width / heads);
  });
}

std::span<const Rule> rope_rules() { return kRopeRules; }

}  // namespace hyperslab::deck
