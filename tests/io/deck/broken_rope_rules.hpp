// SPDX-License-Identifier: Apache-2.0
// Overrides of a deck with rope that break one rule of rotary positions each.
#pragma once

#include "broken_overrides.hpp"

namespace hyperslab::deck::test {

inline const std::vector<BrokenOverrides>& broken_rope_rules() {
  static const std::vector<BrokenOverrides> all = {
      {"model.heads", {"model.head_width=7"}, "model.head_width 7 is odd; use an even one"},
      {"model.heads",
       {"model.rotary_fraction=0.25"},
       "model.rotary_fraction 0.25 of a head of 12 features is 3: give a fraction that leaves an "
       "even number"},
      {"model.rotary_fraction",
       {"model.rotary_fraction=0.5", "model.position=none"},
       "nothing is turned without rope"},
      {"model.rope_scaling",
       {"model.rope_scaling=linear", "model.position=learned"},
       "there are no angles without rope"},
      {"model.rope_factor", {"model.rope_factor=2"}, "it does nothing without model.rope_scaling"},
      {"model.rope_factor",
       {"model.rope_scaling=linear", "model.rope_factor=0.5"},
       "found 0.5, which would squeeze positions; give 1 or more"},
      {"model.rope_original_context",
       {"model.rope_scaling=llama3", "model.rope_factor=2"},
       "give the tokens of a sample that the model was trained on"},
      {"model.rope_original_context",
       {"model.rope_original_context=8"},
       "it goes with model.rope_scaling llama3 and yarn"},
      {"model.rope_high_factor",
       {"model.rope_scaling=llama3", "model.rope_original_context=8", "model.rope_high_factor=1"},
       "1 is not above model.rope_low_factor 1"},
      {"model.rope_beta_fast",
       {"model.rope_scaling=yarn", "model.rope_original_context=8", "model.rope_beta_fast=0.5"},
       "0.5 is not above model.rope_beta_slow 1"},
      {"model.rope_theta",
       {"model.rope_scaling=yarn", "model.rope_original_context=8", "model.rope_theta=0.5"},
       "yarn needs wavelengths that grow, found 0.5"},
  };
  return all;
}

}  // namespace hyperslab::deck::test
