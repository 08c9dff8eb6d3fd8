// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/rope.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace hyperslab::model {
namespace {

struct Known {
  RopeSpec spec;
  std::vector<double> frequencies;
  double magnitude;
};

// transformers 5.23: ROPE_INIT_FUNCTIONS[type](LlamaConfig(hidden_size=16, num_attention_heads=1,
// max_position_embeddings=64, rope_parameters=...), "cpu"), in f32.
const Known kKnown[] = {
    {{.theta = 100, .scaling = RopeScaling::linear, .factor = 2.5},
     {0.40000001, 0.22493653, 0.1264911, 0.071131177, 0.039999999, 0.022493651, 0.012649111,
      0.0071131177},
     1},
    {{.theta = 500, .scaling = RopeScaling::llama3, .factor = 4, .original_context = 64},
     {1, 0.45986328, 0.113882, 0.024312312, 0.01118034, 0.0051414282, 0.002364354, 0.0010872796},
     1},
    {{.theta = 200, .scaling = RopeScaling::yarn, .factor = 4, .original_context = 64},
     {1, 0.41898128, 0.16619675, 0.059991792, 0.01767767, 0.009115831, 0.0047007538, 0.0024240343},
     1.138629436111989},
    {{.theta = 200,
      .scaling = RopeScaling::yarn,
      .factor = 8,
      .original_context = 64,
      .beta_fast = 8,
      .beta_slow = 0.5,
      .attention_factor = 1.5},
     {1, 0.42542717, 0.17284462, 0.065133937, 0.021213204, 0.0045579155, 0.0023503769,
      0.0012120171},
     1.5}};

TEST(RopeAngles, AreThoseOfTransformers) {
  for (const Known& known : kKnown) {
    SCOPED_TRACE(name_of(known.spec.scaling));

    const RopeAngles found = rope_angles(known.spec, 16);

    ASSERT_EQ(found.frequencies.size(), known.frequencies.size());
    for (std::size_t i = 0; i < known.frequencies.size(); ++i) {
      EXPECT_NEAR(found.frequencies[i], known.frequencies[i], 2e-7 * known.frequencies[i]);
    }
    EXPECT_DOUBLE_EQ(found.magnitude, known.magnitude);
  }
}

TEST(RopeAngles, OfAShareOfAHeadAreThoseOfASmallerOne) {
  const RopeSpec quarter = {.theta = 100, .fraction = 0.25};

  EXPECT_EQ(rotated_width(quarter, 32), 8);
  EXPECT_EQ(rope_angles(quarter, 32).frequencies, rope_angles({.theta = 100}, 8).frequencies);
}

}  // namespace
}  // namespace hyperslab::model
