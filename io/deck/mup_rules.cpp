// SPDX-License-Identifier: Apache-2.0
// Rules of keys about the maximal update parametrization.
#include <array>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

bool has_mup(const Config& c) { return c.model.mup_base_width > 0; }

constexpr std::array kMupRules = {
    Rule{
        "optimizer.name", "model.mup_base_width", "adamw or muon with model.mup_base_width",
        [](const Config& c, const Surroundings&) {
          return !has_mup(c) || optim::traits_of(c.optimizer.name).has_mup;
        },
        [](const Config&, const Surroundings&) -> std::string {
          return "learning rates follow the width as Adam's and Muon's do, and sgd has other laws: "
                 "set optimizer.name to adamw or muon, or leave model.mup_base_width out";
        }},
    Rule{
        "model.init", "model.mup_base_width", "normal with model.mup_base_width",
        [](const Config& c, const Surroundings&) {
          return !has_mup(c) || c.model.init == nn::InitRule::normal;
        },
        [](const Config&, const Surroundings&) -> std::string {
          return "xavier has a law of the width of its own: set it to normal and model.init_std to "
                 "that of the narrow model, or leave model.mup_base_width out";
        }},
    Rule{"model.mup_base_head_width", "model.mup_base_width", "0 without model.mup_base_width",
         [](const Config& c, const Surroundings&) {
           return has_mup(c) || c.model.mup_base_head_width == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "it is the head width of a narrower model: set model.mup_base_width to the width "
                  "of that, or leave it out";
         }},
    Rule{"model.attention_scale", "model.mup_base_head_width", "0 with model.mup_base_head_width",
         [](const Config& c, const Surroundings&) {
           return c.model.scores.scale == 0 || c.model.mup_base_head_width == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "model.mup_base_head_width decides it: leave one of them out";
         }},
};

}  // namespace

std::span<const Rule> mup_rules() { return kMupRules; }

}  // namespace hyperslab::deck
