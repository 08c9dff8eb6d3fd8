// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/dropout.hpp"

#include "hyperslab/core/philox.hpp"
#include "ops_test.hpp"
#include "support/part_of.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class DropoutOp : public OpsTest {
 protected:
  StepState state{.input = {.step = 7}};
  [[nodiscard]] Dropout active(float probability, CView sample_position) const {
    return {probability, 42, 13, sample_position, &state};
  }
};

/// The documented mask: 0 or 1 for the element of global index g.
bool kept(const Dropout& dropout, std::uint64_t g) {
  const std::uint64_t block = g / 4;
  const PhiloxCounter counter = {
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(dropout.state->input.step), dropout.site}};
  const PhiloxCounter words = philox(counter, dropout.seed ^ name_hash("dropout"));
  return philox_uniform(words.x[g % 4]) >= dropout.probability;
}

TEST_F(DropoutOp, FollowsTheDocumentedMask) {
  // 7 * 91 elements a sample: not a multiple of a Philox block nor of a batch of blocks.
  const Tensor position = tensor_of(DType::i64, {3}, {5, 0, 7000000});
  const Dropout dropout_spec = active(0.25F, position.view());
  const Tensor x = random_tensor(DType::f32, {3, 7, 91}, 1);
  Tensor y = poisoned(DType::f32, {3, 7, 91});

  dropout(ctx, dropout_spec, x.view(), y.view());

  const auto* positions = position.view().data<std::int64_t>();
  for (Dim i = 0; i < x.view().numel(); ++i) {
    const auto g = static_cast<std::uint64_t>(positions[i / 637] * 637 + i % 637);
    const float expected = kept(dropout_spec, g) ? x.view().data<float>()[i] * (1 / 0.75F) : 0.0F;
    ASSERT_EQ(y.view().data<float>()[i], expected) << i;
  }
}

TEST_F(DropoutOp, IsAFunctionOfThePositionInTheGlobalBatch) {
  const Tensor x = random_tensor(DType::f64, {4, 33}, 1);
  const Tensor all = tensor_of(DType::i64, {4}, {8, 9, 10, 11});
  const Tensor last = tensor_of(DType::i64, {2}, {10, 11});
  Tensor whole = poisoned(DType::f64, {4, 33});
  Tensor part = poisoned(DType::f64, {2, 33});

  dropout(ctx, active(0.5F, all.view()), x.view(), whole.view());
  dropout(ctx, active(0.5F, last.view()), x.view().slice(2, 2), part.view());

  EXPECT_TRUE(same_bits(part.view(), whole.view().slice(2, 2)));
}

TEST_F(DropoutOp, APartOfTheMicrobatchHasItsPartOfTheMask) {
  // Parts that begin and end inside samples, of one element, of several samples, empty.
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = random_tensor(dtype, {3, 7, 91}, 1);
    const Tensor position = tensor_of(DType::i64, {3}, {5, 0, 7000000});
    Dropout spec = active(0.25F, position.view());
    Tensor whole = poisoned(dtype, {3, 7, 91});
    dropout(ctx, spec, x.view(), whole.view());
    spec.elements_per_sample = 7 * 91;
    for (const auto& [first, count] : std::vector<std::array<Dim, 2>>{
             {0, 3}, {2, 9}, {6, 1}, {7, 14}, {20, 1}, {5, 0}, {0, 21}}) {
      spec.first_element = first * 91;
      Tensor part = poisoned(dtype, {count, 91});

      dropout(ctx, spec, x.view().reshaped({21, 91}).slice(first, count), part.view());

      EXPECT_TRUE(same_bits(part.view(), whole.view().reshaped({21, 91}).slice(first, count)))
          << first << "+" << count;
    }
    spec.first_element = 636;
    Tensor two = poisoned(dtype, {2});
    dropout(ctx, spec, x.view().flat().slice(636, 2), two.view());
    EXPECT_TRUE(same_bits(two.view(), whole.view().flat().slice(636, 2)));
  }
}

TEST_F(DropoutOp, APartOfEverySampleHasItsPartOfTheMask) {
  constexpr Dim kColumns = 90;
  const Tensor x = random_tensor(DType::f32, {3, 8, kColumns}, 1);
  const Tensor position = tensor_of(DType::i64, {3}, {5, 0, 7000000});
  Dropout spec = active(0.25F, position.view());
  Tensor whole = poisoned(DType::f32, {3, 8, kColumns});
  dropout(ctx, spec, x.view(), whole.view());
  spec.sample_parts = 4;
  for (spec.sample_part = 0; spec.sample_part < 4; ++spec.sample_part) {
    // Two tokens of each sample, and of these the last 45 columns and the rows but the first.
    const Hyperslab mine = {{0, 2 * spec.sample_part, 0}, {3, 2, kColumns}};
    const Hyperslab right = {{0, 2 * spec.sample_part, 45}, {3, 2, 45}};
    Dropout of_columns = spec;
    of_columns.first_column = 45;
    of_columns.total_columns = kColumns;
    for (const auto& [slab, asked] : {std::pair{mine, spec}, std::pair{right, of_columns}}) {
      const Tensor in =
          tensor_of(DType::f32, slab.count,
                    hyperslab::test::part_of(to_doubles(x.view()), {3, 8, kColumns}, slab));
      const std::vector<double> expected =
          hyperslab::test::part_of(to_doubles(whole.view()), {3, 8, kColumns}, slab);
      Tensor out = poisoned(DType::f32, slab.count);
      dropout(ctx, asked, in.view(), out.view());
      EXPECT_EQ(to_doubles(out.view()), expected) << spec.sample_part;
      const Dim width = slab.count[2];
      Dropout of_rows = asked;
      of_rows.elements_per_sample = 2 * width;
      of_rows.first_element = width;
      Tensor rows = poisoned(DType::f32, {5, width});
      dropout(ctx, of_rows, in.view().as_matrix().slice(1, 5), rows.view());
      EXPECT_TRUE(same_bits(rows.view(), out.view().as_matrix().slice(1, 5)));
    }
  }
  spec.sample_part = 4;
  expect_error_naming("dropout sample_part", [&] { dropout(ctx, spec, x.view(), whole.view()); });
}

TEST_F(DropoutOp, APartOfTheColumnsHasItsPartOfTheMask) {
  constexpr Dim kColumns = 92;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = random_tensor(dtype, {3, 7, kColumns}, 1);
    const Tensor position = tensor_of(DType::i64, {3}, {5, 0, 7000000});
    Dropout spec = active(0.25F, position.view());
    Tensor whole = poisoned(dtype, {3, 7, kColumns});
    dropout(ctx, spec, x.view(), whole.view());
    const std::vector<double> from = to_doubles(x.view());
    const std::vector<double> expected = to_doubles(whole.view());
    for (const auto& [first, count] :
         std::vector<std::array<Dim, 2>>{{0, 46}, {46, 46}, {1, 3}, {91, 1}, {0, 92}}) {
      std::vector<double> in;
      std::vector<double> out;
      for (Dim row = 0; row < 21; ++row) {
        for (Dim i = 0; i < count; ++i) {
          in.push_back(from[row * kColumns + first + i]);
          out.push_back(expected[row * kColumns + first + i]);
        }
      }
      const Tensor own = tensor_of(dtype, {3, 7, count}, in);
      Tensor part = poisoned(dtype, {3, 7, count});
      spec.elements_per_sample = 0;
      spec.first_element = 0;
      spec.first_column = first;
      spec.total_columns = kColumns;

      dropout(ctx, spec, own.view(), part.view());

      EXPECT_EQ(to_doubles(part.view()), out) << first << "+" << count;
      // Of these the rows from the middle of the first sample to the middle of the last.
      spec.elements_per_sample = 7 * count;
      spec.first_element = 3 * count;
      Tensor rows = poisoned(dtype, {13, count});
      dropout(ctx, spec, own.view().reshaped({21, count}).slice(3, 13), rows.view());
      EXPECT_TRUE(same_bits(rows.view(), part.view().reshaped({21, count}).slice(3, 13)));
    }
  }
}

TEST_F(DropoutOp, DropsTheRightShareAndDiffersByStepAndSite) {
  const Tensor x = filled_tensor(DType::f32, {1, 100000}, 1);
  const Tensor position = tensor_of(DType::i64, {1}, {0});
  Tensor first = poisoned(DType::f32, {1, 100000});
  Tensor second = poisoned(DType::f32, {1, 100000});
  Dropout spec = active(0.1F, position.view());

  dropout(ctx, spec, x.view(), first.view());
  spec.site = 14;
  dropout(ctx, spec, x.view(), second.view());

  double dropped = 0;
  double equal = 0;
  for (Dim i = 0; i < 100000; ++i) {
    const float a = first.view().data<float>()[i];
    dropped += a == 0 ? 1 : 0;
    equal += (a == 0) == (second.view().data<float>()[i] == 0) ? 1 : 0;
  }
  EXPECT_NEAR(dropped, 10000, 400);  // four standard deviations
  EXPECT_NEAR(equal, 82000, 500);    // 0.9^2 + 0.1^2
  spec.site = 13;
  state.input.step = 8;
  dropout(ctx, spec, x.view(), second.view());
  EXPECT_FALSE(same_bits(first.view(), second.view()));
}

TEST_F(DropoutOp, WorksInPlaceAndRepeatsItsBits) {
  const Tensor position = tensor_of(DType::i64, {2}, {3, 4});
  Tensor x = random_tensor(DType::f32, {2, 5001}, 1);
  Tensor y = poisoned(DType::f32, {2, 5001});
  const Dropout spec = active(0.3F, position.view());

  dropout(ctx, spec, x.view(), y.view());
  dropout(ctx, spec, x.view(), x.view());

  EXPECT_TRUE(same_bits(x.view(), y.view()));
}

TEST_F(DropoutOp, WrongOperandsAreNamed) {
  Tensor x = filled_tensor(DType::f32, {2, 5}, 1);
  const Tensor position = tensor_of(DType::i64, {3}, {0, 0, 0});
  expect_error_naming("dropout sample_position",
                      [&] { dropout(ctx, active(0.5F, position.view()), x.view(), x.view()); });
  expect_error_naming("dropout probability", [&] {
    dropout(ctx, active(1.0F, position.view().slice(0, 2)), x.view(), x.view());
  });
  Dropout outside = active(0.5F, position.view());
  outside.elements_per_sample = 5;
  outside.first_element = 6;
  expect_error_naming("dropout first_element", [&] { dropout(ctx, outside, x.view(), x.view()); });
  Dropout whole = active(0.5F, position.view().slice(0, 2));
  whole.first_element = 1;
  expect_error_naming("dropout first_element", [&] { dropout(ctx, whole, x.view(), x.view()); });
  Dropout columns = active(0.5F, position.view().slice(0, 2));
  columns.first_column = 4;
  columns.total_columns = 8;
  expect_error_naming("dropout first_column", [&] { dropout(ctx, columns, x.view(), x.view()); });
  columns.first_column = 3;
  columns.elements_per_sample = 8;
  expect_error_naming("dropout first_column: a part",
                      [&] { dropout(ctx, columns, x.view(), x.view()); });
  Dropout stateless = active(0.5F, position.view().slice(0, 2));
  stateless.state = nullptr;
  expect_error_naming("dropout state", [&] { dropout(ctx, stateless, x.view(), x.view()); });
}

}  // namespace
}  // namespace hyperslab::ops
