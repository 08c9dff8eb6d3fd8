// SPDX-License-Identifier: Apache-2.0
// Overrides of a deck that break one rule of mixtures each.
#pragma once

#include "broken_overrides.hpp"

namespace hyperslab::deck::test {

inline const std::vector<BrokenOverrides>& broken_mixture_rules() {
  static const std::string kTwo = "data.train=[a.bin, b.bin]";
  static const std::vector<BrokenOverrides> all = {
      {"data.weights",
       {kTwo, "data.weights=[1, 2, 3]"},
       "found 3 numbers, expected 2: one for each of the 2 entries of data.train"},
      {"data.weights",
       {kTwo, "data.weights=[1, 2, 0, 0]", "data.weight_steps=[5]"},
       "all are 0 at some time"},
      {"data.weights", {"data.weights=[1]"}, "only token files are mixed"},
      {"data.weight_steps",
       {kTwo, "data.weights=[1, 2, 1, 1, 1, 3]", "data.weight_steps=[5, 5]"},
       "each step must come after the one before"},
      {"train.epochs",
       {kTwo, "data.weights=[1, 2]", "train.steps=0", "train.epochs=1"},
       "files that are mixed by weights have epochs of their own: give train.steps"},
  };
  return all;
}

}  // namespace hyperslab::deck::test
