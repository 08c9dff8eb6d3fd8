// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/elementwise.hpp"

#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/dropout.hpp"
#include "problem.hpp"
#include "support/hundredths.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Elementwise : public DevicesTest {};

const std::vector<Activation> kPlain = {Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                        Activation::silu, Activation::relu_squared};

TEST_F(Elementwise, SoftCaps) {
  for (const DType dtype : compute_types()) {
    for (const Dim count : {1, 7, 4099}) {
      Problem problem(dtype);
      problem.input(random_tensor(dtype, {count}, 1, 3.0))
          .in_out(random_tensor(dtype, {count}, 2))
          .output(dtype, {count});
      problem.expect_match(
          [](Context& ctx, const Views& v) {
            softcap(ctx, 1.5F, v[0], v[2]);
            softcap_backward(ctx, 1.5F, v[0], v[1], v[1]);
          },
          "softcap of " + std::to_string(count));
    }
  }
}

/// x and dy, then y and dx.
void expect_activation(Activation activation, Tensor x, Tensor dy, const std::string& what) {
  const DType dtype = x.view().dtype();
  const Shape shape = x.view().shape();
  Problem problem(dtype);
  problem.input(std::move(x)).input(std::move(dy)).output(dtype, shape).output(dtype, shape);
  problem.expect_match(
      [=](Context& ctx, const Views& v) {
        activation_forward(ctx, activation, v[0], v[2]);
        activation_backward(ctx, activation, v[0], v[1], v[3]);
      },
      "activation " + std::to_string(static_cast<int>(activation)) + " of " + what);
}

TEST_F(Elementwise, Activations) {
  for (const DType dtype : compute_types()) {
    for (const Activation activation : kPlain) {
      for (const Dim count : {1, 7, 1031, 4096}) {
        expect_activation(activation, random_tensor(dtype, {count}, 1, 3.0),
                          random_tensor(dtype, {count}, 2), std::to_string(count));
      }
    }
  }
}

TEST_F(Elementwise, ActivationsInPlace) {
  for (const DType dtype : compute_types()) {
    Problem forward(dtype);
    forward.in_out(random_tensor(dtype, {3, 67}, 1, 2.0));
    forward.expect_match(
        [](Context& ctx, const Views& v) { activation_forward(ctx, Activation::gelu, v[0], v[0]); },
        "y in x's memory");
    Problem over_x(dtype);
    over_x.in_out(random_tensor(dtype, {3, 67}, 1)).input(random_tensor(dtype, {3, 67}, 2));
    over_x.expect_match(
        [](Context& ctx, const Views& v) {
          activation_backward(ctx, Activation::gelu_tanh, v[0], v[1], v[0]);
        },
        "dx in x's memory");
    Problem over_dy(dtype);
    over_dy.input(random_tensor(dtype, {3, 67}, 1)).in_out(random_tensor(dtype, {3, 67}, 2));
    over_dy.expect_match(
        [](Context& ctx, const Views& v) {
          activation_backward(ctx, Activation::silu, v[0], v[1], v[1]);
        },
        "dx in dy's memory");
  }
}

TEST_F(Elementwise, LargeMagnitudesStayFinite) {
  const std::vector<double> values = {-60000, -120, -89, -40, -1e-4, 0, 1e-4, 40, 89, 120, 60000};
  const auto count = static_cast<Dim>(values.size());
  for (const DType dtype : compute_types()) {
    for (const Activation activation :
         {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
      expect_activation(activation, tensor_of(dtype, {count}, values),
                        filled_tensor(dtype, {count}, 1), "large x");
    }
  }
}

TEST_F(Elementwise, GatedActivations) {
  for (const DType dtype : compute_types()) {
    for (const Activation activation :
         {Activation::swiglu, Activation::geglu, Activation::geglu_tanh}) {
      for (const auto& [rows, F] :
           std::vector<std::array<Dim, 2>>{{1, 1}, {3, 13}, {5, 64}, {33, 136}}) {
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {rows, 2 * F}, 1, 2.0))
            .input(random_tensor(dtype, {rows, F}, 2))
            .output(dtype, {rows, F})
            .output(dtype, {rows, 2 * F})
            .in_out(random_tensor(dtype, {rows, 2 * F}, 1, 2.0));
        problem.expect_match(
            [=](Context& ctx, const Views& v) {
              gated_forward(ctx, activation, v[0], v[2]);
              gated_backward(ctx, activation, v[0], v[1], v[3]);
              gated_backward(ctx, activation, v[4], v[1], v[4]);
            },
            "gated");
      }
    }
  }
}

double most_of(CView stored) {
  double most = 0;
  for (const double value : to_doubles(stored)) most = std::max(most, std::abs(value));
  return most;
}

/// Beside the values that a device stored, as those of another differ from them in the last bits.
TEST_F(Elementwise, GatedOnesReportTheAmaxThatTheyStore) {
  for (const DType dtype : compute_types()) {
    for (const auto& [rows, F] :
         std::vector<std::array<Dim, 2>>{{1, 1}, {3, 13}, {33, 136}, {1000, 264}}) {
      Problem problem(dtype);
      problem.input(random_tensor(dtype, {rows, 2 * F}, 1, 2.0))
          .input(random_tensor(dtype, {rows, F}, 2))
          .output(dtype, {rows, F})
          .output(dtype, {rows, 2 * F})
          .in_out(filled_tensor(DType::f32, {1}, 1e30))
          .in_out(filled_tensor(DType::f32, {1}, 1e30))
          .output(dtype, {rows, F});
      problem.on_each(
          [](Context& ctx, const Views& v) {
            gated_forward(ctx, Activation::swiglu, v[0], v[2], v[4]);
            gated_backward(ctx, Activation::swiglu, v[0], v[1], v[3], v[5]);
            gated_forward(ctx, Activation::swiglu, v[0], v[6]);
          },
          [](const Results& found) {
            EXPECT_EQ(found[4].view().data<float>()[0], most_of(found[2].view()));
            EXPECT_EQ(found[5].view().data<float>()[0], most_of(found[3].view()));
            EXPECT_TRUE(same_bits(found[6].view(), found[2].view()));
          });
    }
  }
}

TEST_F(Elementwise, AddAndFill) {
  for (const DType dtype : compute_types()) {
    for (const Dim count : {1, 13, 100003}) {
      Problem sum(dtype);
      sum.input(random_tensor(dtype, {count}, 1))
          .input(random_tensor(dtype, {count}, 2))
          .output(dtype, {count});
      sum.expect_match([](Context& ctx, const Views& v) { add(ctx, v[0], v[1], v[2]); }, "add");
      Problem zero(dtype);
      zero.output(dtype, {count});
      zero.on_each(
          [](Context& ctx, const Views& v) { fill(ctx, 0, v[0]); },
          [&](const Results& found) {
            EXPECT_TRUE(same_bits(found[0].view(), filled_tensor(dtype, {count}, 0).view()));
          });
    }
  }
  Problem values(DType::f32);
  values.output(DType::f32, {1037});
  values.expect_match([](Context& ctx, const Views& v) { fill(ctx, 2.5F, v[0]); }, "fill");
}

TEST_F(Elementwise, CastsRoundToNearestEven) {
  for (const DType from : kStoredTypes) {
    for (const DType to : kStoredTypes) {
      for (const Dim count : {1, 15, 4099}) {
        Tensor x = random_tensor(from, {count}, 3, 1000.0);
        const Tensor expected = converted(x.view(), to);
        Problem problem(DType::f32);
        problem.input(std::move(x)).output(to, {count});
        problem.on_each([](Context& ctx, const Views& v) { cast(ctx, v[0], v[1]); },
                        [&](const Results& found) {
                          EXPECT_TRUE(same_bits(found[1].view(), expected.view()))
                              << name_of(from) << " to " << name_of(to);
                        });
      }
    }
  }
}

TEST_F(Elementwise, FourWaysOfAddingAHundredthAThousandTimes) {
  for (const Device device : Problem(DType::f32).devices()) {
    Context ctx(device);
    Hundredths hundredths(ctx);
    expect_eight_decimals(hundredths.all_f32(), 10.00013351);
    if (device == Device::cuda) expect_eight_decimals(hundredths.all_f16(), 9.95312500);
    expect_eight_decimals(hundredths.stored_in_f16(), 9.95312500);
    expect_eight_decimals(hundredths.mixed(), 10.00213623);
    expect_eight_decimals(hundredths.converted(), 10.00213623);
  }
}

TEST_F(Elementwise, RootMeanSquare) {
  for (const Dim count : {1, 1023, 300007}) {
    Problem problem(DType::f32);
    problem.input(random_tensor(DType::f32, {count}, 4, 3.0))
        .fixed_output(poisoned(DType::f32, {1}));
    problem.expect_match([](Context& ctx, const Views& v) { root_mean_square(ctx, v[0], v[1]); },
                         "root_mean_square");
  }
}

TEST_F(Elementwise, DropoutHasTheMaskOfTheCpu) {
  StepState state;
  state.input.step = 5000000007;  // more than 32 bits: the mask takes the lower ones
  for (const DType dtype : compute_types()) {
    for (const Dim per_sample : {1, 637, 640}) {
      Problem problem(dtype);
      problem.input(filled_tensor(dtype, {3, per_sample}, 1))
          .output(dtype, {3, per_sample})
          .fixed(tensor_of(DType::i64, {3}, {5, 0, 7000000}))
          .fixed(bytes_of(state));
      problem.expect_match(
          [](Context& ctx, const Views& v) {
            const Dropout spec = {0.25F, 42, 13, v[2], struct_at<StepState>(v[3])};
            dropout(ctx, spec, v[0], v[1]);
          },
          "dropout");
    }
  }
}

TEST_F(Elementwise, APartOfTheMicrobatchHasItsPartOfTheMask) {
  StepState state;
  state.input.step = 11;
  for (const DType dtype : compute_types()) {
    for (const Dim C : {1, 91, 640}) {
      // Rows of 7 in a sample, 3 samples.
      for (const auto& [first, count] :
           std::vector<std::array<Dim, 2>>{{0, 21}, {2, 9}, {6, 1}, {7, 14}, {20, 1}, {5, 0}}) {
        Problem problem(dtype);
        problem.input(filled_tensor(dtype, {count, C}, 1))
            .output(dtype, {count, C})
            .fixed(tensor_of(DType::i64, {3}, {5, 0, 7000000}))
            .fixed(bytes_of(state));
        problem.expect_match(
            [C = C, first = first](Context& ctx, const Views& v) {
              Dropout spec = {0.25F, 42, 13, v[2], struct_at<StepState>(v[3])};
              spec.elements_per_sample = 7 * C;
              spec.first_element = first * C;
              spec.sample_part = 2;
              spec.sample_parts = 4;
              dropout(ctx, spec, v[0], v[1]);
            },
            "dropout of a part");
      }
    }
  }
}

TEST_F(Elementwise, APartOfTheColumnsHasItsPartOfTheMask) {
  StepState state;
  state.input.step = 11;
  for (const DType dtype : compute_types()) {
    for (const auto& [first, count, total] :
         std::vector<std::array<Dim, 3>>{{640, 640, 1280}, {8, 24, 96}, {3, 5, 11}, {6, 8, 30}}) {
      for (const bool cuts_rows : {false, true}) {
        const Shape shape = cuts_rows ? Shape{9, count} : Shape{3, 7, count};
        Problem problem(dtype);
        problem.input(filled_tensor(dtype, shape, 1))
            .output(dtype, shape)
            .fixed(tensor_of(DType::i64, {3}, {5, 0, 7000000}))
            .fixed(bytes_of(state));
        problem.expect_match(
            [=, first = first, count = count, total = total](Context& ctx, const Views& v) {
              Dropout spec = {0.25F, 42, 13, v[2], struct_at<StepState>(v[3])};
              spec.first_column = first;
              spec.total_columns = total;
              spec.sample_part = 1;
              spec.sample_parts = 3;
              if (cuts_rows) {
                spec.elements_per_sample = 7 * count;
                spec.first_element = 2 * count;
              }
              dropout(ctx, spec, v[0], v[1]);
            },
            "dropout of a part of the columns");
      }
    }
  }
}

TEST_F(Elementwise, WithoutDropoutAllIsKept) {
  for (const DType dtype : compute_types()) {
    Problem problem(dtype);
    problem.input(random_tensor(dtype, {2, 9}, 1)).output(dtype, {2, 9});
    problem.expect_match([](Context& ctx, const Views& v) { dropout(ctx, Dropout{}, v[0], v[1]); },
                         "inactive dropout");
  }
}

}  // namespace
}  // namespace hyperslab::ops
