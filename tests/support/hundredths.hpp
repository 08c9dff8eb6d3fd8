// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// 0.01 added a thousand times, elementwise, by the ops of a context's device: what the types of
/// sum and addend do to the result.
class Hundredths {
 public:
  explicit Hundredths(Context& ctx)
      : ctx_(ctx),
        wide_(tensor(DType::f32)),
        half_(tensor(DType::f16)),
        converted_(tensor(DType::f32)),
        sum_(tensor(DType::f32)),
        half_sum_(tensor(DType::f16)) {
    ops::fill(ctx, 0.01F, wide_.view());
    ops::cast(ctx, wide_.view(), half_.view());
    ops::cast(ctx, half_.view(), converted_.view());
  }

  /// Sum and addend in f32.
  [[nodiscard]] std::vector<double> all_f32() {
    return repeat(sum_, [&] { ops::add(ctx_, sum_.view(), wide_.view(), sum_.view()); });
  }
  /// Sum and addend in f16, by an add of f16: GPUs have it.
  [[nodiscard]] std::vector<double> all_f16() {
    return repeat(half_sum_,
                  [&] { ops::add(ctx_, half_sum_.view(), half_.view(), half_sum_.view()); });
  }
  /// The same by an add of f32, whose result is stored in f16: rounded alike.
  [[nodiscard]] std::vector<double> stored_in_f16() {
    return repeat(half_sum_, [&] {
      ops::cast(ctx_, half_sum_.view(), sum_.view());
      ops::add(ctx_, sum_.view(), converted_.view(), sum_.view());
      ops::cast(ctx_, sum_.view(), half_sum_.view());
    });
  }
  /// A sum in f32 of an addend in f16, which is read again each time.
  [[nodiscard]] std::vector<double> mixed() {
    Tensor read = tensor(DType::f32);
    return repeat(sum_, [&] {
      ops::cast(ctx_, half_.view(), read.view());
      ops::add(ctx_, sum_.view(), read.view(), sum_.view());
    });
  }
  /// An addend in f16 that was converted to f32 before.
  [[nodiscard]] std::vector<double> converted() {
    return repeat(sum_, [&] { ops::add(ctx_, sum_.view(), converted_.view(), sum_.view()); });
  }

 private:
  static constexpr Dim kCount = 1031;  // whole vectors and a rest

  [[nodiscard]] Tensor tensor(DType dtype) const { return {ctx_.device(), dtype, {kCount}}; }

  template <class Add>
  [[nodiscard]] std::vector<double> repeat(Tensor& sum, Add&& add) {
    ops::fill(ctx_, 0, sum.view());
    for (int i = 0; i < 1000; ++i) add();
    Tensor found(Device::cpu, sum.view().dtype(), {kCount});
    copy(ctx_, sum.view(), found.view());
    synchronize(ctx_);
    return to_doubles(found.view());
  }

  Context& ctx_;
  Tensor wide_;
  Tensor half_;
  Tensor converted_;
  Tensor sum_;
  Tensor half_sum_;
};

/// EXPECTs every element to be `expected` to eight decimals.
inline void expect_eight_decimals(const std::vector<double>& found, double expected) {
  ASSERT_FALSE(found.empty());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected, 5e-9) << i;
}

}  // namespace hyperslab::test
