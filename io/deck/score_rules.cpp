// SPDX-License-Identifier: Apache-2.0
// Rules of keys about windows and scores of attention.
#include <fmt/format.h>

#include <array>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

bool has_window(const Config& c) { return c.model.scores.window > 0; }
std::string without_window(const Config&, const Surroundings&) {
  return "it says which layers have a window: set model.window, or leave it out";
}

constexpr std::array kScoreRules = {
    Rule{"model.window", "model.family", "0 with family vit",
         [](const Config& c, const Surroundings&) {
           return !has_window(c) || !c.model.is_of_images();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "patches of an image see each other all: leave it out";
         }},
    Rule{"model.window_full_every", "model.window", "0 without model.window",
         [](const Config& c, const Surroundings&) {
           return has_window(c) || c.model.scores.full_every == 0;
         },
         without_window},
    Rule{"model.window_first_layer", "model.window", "0 without model.window",
         [](const Config& c, const Surroundings&) {
           return has_window(c) || c.model.scores.first_windowed == 0;
         },
         without_window},
    Rule{"model.rope_local_theta", "model.window model.position", "0 without model.window and rope",
         [](const Config& c, const Surroundings&) {
           const bool used = has_window(c) && c.model.position == model::Position::rope;
           return used || c.model.rope_local_theta == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "it is the base of rope in layers with a window: set model.window and "
                  "model.position to rope, or leave it out";
         }},
    Rule{"model.parallel_block", "model.norm_place", "false unless model.norm_place is pre",
         [](const Config& c, const Surroundings&) {
           return !c.model.parallel_block || c.model.norm_place == model::NormPlace::pre;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "parallel sublayers have norms before them alone: set model.norm_place to pre";
         }},
    Rule{"model.qk_norm", "parallel.tensor", "none or head with parallel.tensor above 1",
         [](const Config& c, const Surroundings&) {
           return c.model.qk_norm != model::QkNorm::width || c.parallel.tensor == 1;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "a rank holds a part of the heads, and squares of all would have to be summed: "
                  "set "
                  "parallel.tensor to 1";
         }},
    Rule{"model.attention_sinks", "model.family", "false with family vit",
         [](const Config& c, const Surroundings&) {
           return !c.model.scores.sinks || !c.model.is_of_images();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "sinks are of models of text: leave it out";
         }},
    Rule{"model.logit_softcap", "model.family", "0 with family vit",
         [](const Config& c, const Surroundings&) {
           return c.model.logit_softcap == 0 || !c.model.is_of_images();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "a class head caps no logits: leave it out";
         }},
};

}  // namespace

std::span<const Rule> score_rules() { return kScoreRules; }

}  // namespace hyperslab::deck
