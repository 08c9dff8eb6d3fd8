// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_test.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/dropout.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "support/hundredths.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class GpuElementwise : public GpuTest {};

const std::vector<Activation> kPlain = {Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                        Activation::silu, Activation::relu_squared};

TEST_F(GpuElementwise, SoftCaps) {
  for (const DType dtype : kGpuTypes) {
    for (const Dim count : {1, 7, 4099}) {
      Problem problem(dtype);
      problem.input(random_tensor(dtype, {count}, 1, 3.0))
          .in_out(random_tensor(dtype, {count}, 2))
          .output(dtype, {count});
      problem.expect_match(
          [](Context& ctx, const Problem::Views& v) {
            softcap(ctx, 1.5F, v[0], v[2]);
            softcap_backward(ctx, 1.5F, v[0], v[1], v[1]);
          },
          "softcap of " + std::to_string(count));
    }
  }
}

TEST_F(GpuElementwise, Activations) {
  for (const DType dtype : kGpuTypes) {
    for (const Activation activation : kPlain) {
      for (const Dim count : {1, 7, 1031, 4096}) {
        const std::string what = "activation " + std::to_string(static_cast<int>(activation)) +
                                 " of " + std::to_string(count);
        Problem forward(dtype);
        forward.input(random_tensor(dtype, {count}, 1, 3.0)).output(dtype, {count});
        forward.expect_match(
            [=](Context& ctx, const Problem::Views& v) {
              activation_forward(ctx, activation, v[0], v[1]);
            },
            what + " forward");
        Problem backward(dtype);
        backward.input(random_tensor(dtype, {count}, 1, 3.0))
            .input(random_tensor(dtype, {count}, 2))
            .output(dtype, {count});
        backward.expect_match(
            [=](Context& ctx, const Problem::Views& v) {
              activation_backward(ctx, activation, v[0], v[1], v[2]);
            },
            what + " backward");
      }
    }
  }
}

TEST_F(GpuElementwise, NormalsHaveTheBitsOfTheCpu) {
  const auto normals = [](Device device, const Shape& shape, std::uint64_t first) {
    Context ctx(device, 0);
    Tensor y(device, DType::f32, shape);
    fill_normal(ctx, {17, 3, 0.02F}, first, static_cast<std::uint64_t>(shape[1]) + 5, y.view());
    Tensor host(Device::cpu, DType::f32, shape);
    copy(ctx, y.view(), host.view());
    synchronize(ctx);
    return host;
  };
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{70000, 3}, Shape{2, 1 << 20}}) {
    for (const std::uint64_t first : {0, 1, 6}) {
      EXPECT_TRUE(same_bits(normals(Device::cuda, shape, first).view(),
                            normals(Device::cpu, shape, first).view()))
          << shape.str() << " from " << first;
    }
  }
}

TEST_F(GpuElementwise, ActivationsInPlace) {
  for (const DType dtype : kGpuTypes) {
    Problem forward(dtype);
    forward.in_out(random_tensor(dtype, {3, 67}, 1, 2.0));
    forward.expect_match(
        [](Context& ctx, const Problem::Views& v) {
          activation_forward(ctx, Activation::gelu, v[0], v[0]);
        },
        "y in x's memory");
    Problem over_x(dtype);
    over_x.in_out(random_tensor(dtype, {3, 67}, 1)).input(random_tensor(dtype, {3, 67}, 2));
    over_x.expect_match(
        [](Context& ctx, const Problem::Views& v) {
          activation_backward(ctx, Activation::gelu_tanh, v[0], v[1], v[0]);
        },
        "dx in x's memory");
    Problem over_dy(dtype);
    over_dy.input(random_tensor(dtype, {3, 67}, 1)).in_out(random_tensor(dtype, {3, 67}, 2));
    over_dy.expect_match(
        [](Context& ctx, const Problem::Views& v) {
          activation_backward(ctx, Activation::silu, v[0], v[1], v[1]);
        },
        "dx in dy's memory");
  }
}

TEST_F(GpuElementwise, LargeMagnitudesStayFinite) {
  const std::vector<double> values = {-60000, -120, -89, -40, -1e-4, 0, 1e-4, 40, 89, 120, 60000};
  const auto count = static_cast<Dim>(values.size());
  for (const DType dtype : kGpuTypes) {
    for (const Activation activation :
         {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
      Problem forward(dtype);
      forward.input(tensor_of(dtype, {count}, values)).output(dtype, {count});
      forward.expect_match(
          [=](Context& ctx, const Problem::Views& v) {
            activation_forward(ctx, activation, v[0], v[1]);
          },
          "large x");
      Problem backward(dtype);
      backward.input(tensor_of(dtype, {count}, values))
          .input(filled_tensor(dtype, {count}, 1))
          .output(dtype, {count});
      backward.expect_match(
          [=](Context& ctx, const Problem::Views& v) {
            activation_backward(ctx, activation, v[0], v[1], v[2]);
          },
          "slope of large x");
    }
  }
}

TEST_F(GpuElementwise, GatedActivations) {
  for (const DType dtype : kGpuTypes) {
    for (const Activation activation :
         {Activation::swiglu, Activation::geglu, Activation::geglu_tanh}) {
      for (const auto& [rows, F] :
           std::vector<std::array<Dim, 2>>{{1, 1}, {3, 13}, {5, 64}, {33, 136}}) {
        Problem forward(dtype);
        forward.input(random_tensor(dtype, {rows, 2 * F}, 1, 2.0)).output(dtype, {rows, F});
        forward.expect_match(
            [=](Context& ctx, const Problem::Views& v) {
              gated_forward(ctx, activation, v[0], v[1]);
            },
            "gated_forward");
        Problem backward(dtype);
        backward.input(random_tensor(dtype, {rows, 2 * F}, 1, 2.0))
            .input(random_tensor(dtype, {rows, F}, 2))
            .output(dtype, {rows, 2 * F});
        backward.expect_match(
            [=](Context& ctx, const Problem::Views& v) {
              gated_backward(ctx, activation, v[0], v[1], v[2]);
            },
            "gated_backward");
        Problem in_place(dtype);
        in_place.in_out(random_tensor(dtype, {rows, 2 * F}, 1, 2.0))
            .input(random_tensor(dtype, {rows, F}, 2));
        in_place.expect_match(
            [=](Context& ctx, const Problem::Views& v) {
              gated_backward(ctx, activation, v[0], v[1], v[0]);
            },
            "gated_backward in place");
      }
    }
  }
}

/// A copy on a device.
Tensor copied_to(Device device, CView from) {
  Context ctx(Device::cuda);
  Tensor out(device, from.dtype(), from.shape());
  copy(ctx, from, out.view());
  synchronize(ctx);
  return out;
}

double most_of(CView stored) {
  const Tensor host = copied_to(Device::cpu, stored);
  double most = 0;
  for (const double value : to_doubles(host.view())) most = std::max(most, std::abs(value));
  return most;
}

/// Beside the values that the GPU stored, as those of the CPU differ from them in the last bits.
TEST_F(GpuElementwise, GatedOnesReportTheAmaxThatTheyStore) {
  Context gpu(Device::cuda);
  for (const DType dtype : kGpuTypes) {
    for (const auto& [rows, F] :
         std::vector<std::array<Dim, 2>>{{1, 1}, {3, 13}, {33, 136}, {1000, 264}}) {
      const Tensor gate_up =
          copied_to(Device::cuda, random_tensor(dtype, {rows, 2 * F}, 1, 2.0).view());
      const Tensor dy = copied_to(Device::cuda, random_tensor(dtype, {rows, F}, 2).view());
      Tensor y(Device::cuda, dtype, {rows, F});
      Tensor d(Device::cuda, dtype, {rows, 2 * F});
      Tensor amax = copied_to(Device::cuda, filled_tensor(DType::f32, {2}, 1e30).view());

      gated_forward(gpu, Activation::swiglu, gate_up.view(), y.view(), amax.view().slice(0, 1));
      gated_backward(gpu, Activation::swiglu, gate_up.view(), dy.view(), d.view(),
                     amax.view().slice(1, 1));
      synchronize(gpu);

      const Tensor found = copied_to(Device::cpu, amax.view());
      EXPECT_EQ(found.view().data<float>()[0], most_of(y.view())) << rows << " x " << F;
      EXPECT_EQ(found.view().data<float>()[1], most_of(d.view())) << rows << " x " << F;
    }
  }
}

TEST_F(GpuElementwise, AddAndFill) {
  for (const DType dtype : kGpuTypes) {
    for (const Dim count : {1, 13, 100003}) {
      Problem sum(dtype);
      sum.input(random_tensor(dtype, {count}, 1))
          .input(random_tensor(dtype, {count}, 2))
          .output(dtype, {count});
      sum.expect_match([](Context& ctx, const Problem::Views& v) { add(ctx, v[0], v[1], v[2]); },
                       "add");
      Problem zero(dtype);
      zero.output(dtype, {count});
      const auto found =
          zero.on_gpu([](Context& ctx, const Problem::Views& v) { fill(ctx, 0, v[0]); }, 1);
      EXPECT_TRUE(same_bits(found[0].view(), filled_tensor(dtype, {count}, 0).view()));
    }
  }
  Problem values(DType::f32);
  values.output(DType::f32, {1037});
  values.expect_match([](Context& ctx, const Problem::Views& v) { fill(ctx, 2.5F, v[0]); }, "fill");
}

TEST_F(GpuElementwise, CastRoundsAsTheCpu) {
  Context cpu(Device::cpu);
  for (const DType from : kGpuTypes) {
    for (const DType to : kGpuTypes) {
      for (const Dim count : {1, 15, 4099}) {
        Problem problem(to);
        Tensor expected(Device::cpu, to, {count});
        const Tensor x = random_tensor(from, {count}, 3, 1000.0);
        cast(cpu, x.view(), expected.view());
        problem.input(x.clone()).output(to, {count});
        for (const Dim offset : {0, 1}) {
          const auto found = problem.on_gpu(
              [](Context& ctx, const Problem::Views& v) { cast(ctx, v[0], v[1]); }, offset);
          EXPECT_TRUE(same_bits(found[1].view(), expected.view()))
              << name_of(from) << " to " << name_of(to);
        }
      }
    }
  }
}

TEST_F(GpuElementwise, FourWaysOfAddingAHundredthAThousandTimes) {
  Context ctx(Device::cuda, 0);
  Hundredths hundredths(ctx);
  expect_eight_decimals(hundredths.all_f32(), 10.00013351);
  expect_eight_decimals(hundredths.all_f16(), 9.95312500);
  expect_eight_decimals(hundredths.stored_in_f16(), 9.95312500);
  expect_eight_decimals(hundredths.mixed(), 10.00213623);
  expect_eight_decimals(hundredths.converted(), 10.00213623);
}

TEST_F(GpuElementwise, RootMeanSquare) {
  for (const Dim count : {1, 1023, 300007}) {
    Problem problem(DType::f32);
    problem.input(random_tensor(DType::f32, {count}, 4, 3.0))
        .fixed_output(poisoned(DType::f32, {1}));
    problem.expect_match(
        [](Context& ctx, const Problem::Views& v) { root_mean_square(ctx, v[0], v[1]); },
        "root_mean_square");
  }
}

TEST_F(GpuElementwise, DropoutHasTheMaskOfTheCpu) {
  StepState state;
  state.input.step = 5000000007;  // more than 32 bits: the mask takes the lower ones
  for (const DType dtype : kGpuTypes) {
    for (const Dim per_sample : {1, 637, 640}) {
      Problem problem(dtype);
      problem.input(filled_tensor(dtype, {3, per_sample}, 1))
          .output(dtype, {3, per_sample})
          .fixed(tensor_of(DType::i64, {3}, {5, 0, 7000000}))
          .fixed(bytes_of(state));
      problem.expect_match(
          [](Context& ctx, const Problem::Views& v) {
            const Dropout spec = {0.25F, 42, 13, v[2], struct_at<StepState>(v[3])};
            dropout(ctx, spec, v[0], v[1]);
          },
          "dropout");
    }
  }
}

TEST_F(GpuElementwise, APartOfTheMicrobatchHasItsPartOfTheMask) {
  StepState state;
  state.input.step = 11;
  for (const DType dtype : kGpuTypes) {
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
            [C = C, first = first](Context& ctx, const Problem::Views& v) {
              Dropout spec = {0.25F, 42, 13, v[2], struct_at<StepState>(v[3])};
              spec.elements_per_sample = 7 * C;
              spec.first_element = first * C;
              dropout(ctx, spec, v[0], v[1]);
            },
            "dropout of a part");
      }
    }
  }
}

TEST_F(GpuElementwise, APartOfTheColumnsHasItsPartOfTheMask) {
  StepState state;
  state.input.step = 11;
  for (const DType dtype : kGpuTypes) {
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
            [=, first = first, count = count, total = total](Context& ctx,
                                                             const Problem::Views& v) {
              Dropout spec = {0.25F, 42, 13, v[2], struct_at<StepState>(v[3])};
              spec.first_column = first;
              spec.total_columns = total;
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

TEST_F(GpuElementwise, WithoutDropoutAllIsKept) {
  for (const DType dtype : kGpuTypes) {
    Problem problem(dtype);
    problem.input(random_tensor(dtype, {2, 9}, 1)).output(dtype, {2, 9});
    problem.expect_match(
        [](Context& ctx, const Problem::Views& v) { dropout(ctx, Dropout{}, v[0], v[1]); },
        "inactive dropout");
  }
}

TEST_F(GpuElementwise, DoubleIsRefused) {
  Problem problem(DType::f64);
  problem.input(random_tensor(DType::f64, {3}, 1)).output(DType::f64, {3});
  EXPECT_THROW(
      {
        const auto found = problem.on_gpu(
            [](Context& ctx, const Problem::Views& v) { add(ctx, v[0], v[0], v[1]); });
      },
      Error);
}

}  // namespace
}  // namespace hyperslab::ops
