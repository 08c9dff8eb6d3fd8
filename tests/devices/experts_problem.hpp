// SPDX-License-Identifier: Apache-2.0
// Problems of products of experts' rows, for the tests of every device and for those of kernels.
#pragma once

#include <cmath>
#include <limits>
#include <numeric>

#include "devices/problem.hpp"
#include "hyperslab/ops/experts.hpp"

namespace hyperslab::ops::test {

using namespace hyperslab::test;

struct ExpertsCase {
  std::vector<std::int32_t> rows;  ///< each expert's
  Dim in;
  Dim out;
  Dim unused = 0;  ///< rows that no expert has

  [[nodiscard]] Dim experts() const { return static_cast<Dim>(rows.size()); }
  [[nodiscard]] Dim used() const { return std::accumulate(rows.begin(), rows.end(), Dim{0}); }
  [[nodiscard]] Dim all() const { return used() + unused; }
  [[nodiscard]] Tensor first_rows() const {
    std::vector<std::int32_t> first = {0};
    for (const std::int32_t count : rows) first.push_back(first.back() + count);
    return int_tensor({experts() + 1}, first);
  }
  [[nodiscard]] std::string text() const {
    return std::to_string(experts()) + " experts of " + std::to_string(used()) + " rows, " +
           std::to_string(in) + " to " + std::to_string(out);
  }
};

/// Experts without rows, all rows of one, and rows that end a tile, or one row before or after.
inline std::vector<std::vector<std::int32_t>> rows_of_experts() {
  std::vector<std::int32_t> many(128);
  for (std::size_t e = 0; e < many.size(); ++e) many[e] = static_cast<std::int32_t>(e * 7 % 5);
  return {{70}, {128}, {0, 5, 0}, {0, 0, 300, 0}, {130, 0, 1, 127, 128, 129, 0, 63}, many};
}

/// Normals, and NaNs in the last rows, which no expert has.
inline Tensor rows_with_unused(DType dtype, const ExpertsCase& of, Dim width, std::uint64_t seed) {
  std::vector<double> values = to_doubles(random_tensor(dtype, {of.all(), width}, seed).view());
  std::fill(values.begin() + of.used() * width, values.end(),
            std::numeric_limits<double>::quiet_NaN());
  return tensor_of(dtype, {of.all(), width}, values);
}

/// An output whose unused rows must stay as they are.
inline Tensor rows_before(DType dtype, const ExpertsCase& of, Dim width) {
  std::vector<double> values(static_cast<std::size_t>(of.all() * width),
                             std::numeric_limits<double>::quiet_NaN());
  std::fill(values.begin() + of.used() * width, values.end(), 0.5);
  return tensor_of(dtype, {of.all(), width}, values);
}

/// The first `used` rows of a matrix as GatheredRows of a shuffled copy. Rows beyond have pairs
/// that no matrix has: they must not be read.
class GatheredCopy {
 public:
  GatheredCopy(Context& ctx, CView rows, Dim used)
      : ctx_(ctx),
        values_(ctx.device(), rows.dtype(), {std::max<Dim>(used, 1), rows.shape().back()}),
        pairs_(ctx.device(), DType::i32, {rows.shape()[0]}),
        room_(ctx.device(), rows.dtype(), rows.shape()),
        used_(ctx.device(), DType::i32, {1}) {
    constexpr std::int32_t kNowhere = 0x40000000;
    const Dim stride = used % 7 == 0 ? 11 : 7;  // visits every row if it does not divide `used`
    const bool visits_all = used % stride != 0;
    std::vector<std::int32_t> order(static_cast<std::size_t>(std::max<Dim>(used, 1)));
    std::vector<std::int32_t> pairs(static_cast<std::size_t>(rows.shape()[0]), kNowhere);
    for (Dim token = 0; token < used; ++token) {
      const Dim row = visits_all ? token * stride % used : token;
      order[static_cast<std::size_t>(token)] = static_cast<std::int32_t>(row);
      pairs[static_cast<std::size_t>(row)] =
          static_cast<std::int32_t>(token * kDivisor + row % kDivisor);
    }
    Tensor order_here(ctx.device(), DType::i32, {std::max<Dim>(used, 1)});
    copy(ctx, int_tensor(order_here.view().shape(), order).view(), order_here.view());
    copy(ctx, int_tensor(pairs_.view().shape(), pairs).view(), pairs_.view());
    copy(ctx, int_tensor({1}, {static_cast<std::int32_t>(used)}).view(), used_.view());
    gather_rows(ctx, rows, order_here.view(), 1, values_.view());
    synchronize(ctx);
  }
  GatheredCopy(const GatheredCopy&) = delete;
  GatheredCopy& operator=(const GatheredCopy&) = delete;
  GatheredCopy(GatheredCopy&&) = delete;
  GatheredCopy& operator=(GatheredCopy&&) = delete;
  ~GatheredCopy() { synchronize(ctx_); }

  [[nodiscard]] GatheredRows rows() {
    GatheredRows rows(values_.view());
    rows.pairs = pairs_.view();
    rows.divisor = kDivisor;
    rows.room = room_.view();
    rows.used = used_.view();
    return rows;
  }

 private:
  static constexpr Dim kDivisor = 3;
  Context& ctx_;
  Tensor values_;
  Tensor pairs_;
  Tensor room_;
  Tensor used_;
};

/// Calls of an op with the operands of a problem; `op` has the op's signature.
template <class Op>
void expect_forward(const ExpertsCase& of, DType dtype, const Op& op, const std::string& kernel) {
  const double scale = 1 / std::sqrt(static_cast<double>(of.in));
  Problem problem(dtype);
  problem.input(rows_with_unused(dtype, of, of.in, 1))
      .input(random_tensor(dtype, {of.experts() * of.out, of.in}, 2, scale))
      .fixed(of.first_rows())
      .in_out(rows_before(dtype, of, of.out));
  problem.expect_match([&](Context& ctx, const Views& v) { op(ctx, v[0], v[1], v[2], v[3]); },
                       kernel + ", experts_forward of " + of.text());
}

template <class Op>
void expect_backward_input(const ExpertsCase& of, DType dtype, const Op& op,
                           const std::string& kernel) {
  const double scale = 1 / std::sqrt(static_cast<double>(of.out));
  Problem problem(dtype);
  problem.input(rows_with_unused(dtype, of, of.out, 3))
      .input(random_tensor(dtype, {of.experts() * of.out, of.in}, 4, scale))
      .fixed(of.first_rows())
      .in_out(rows_before(dtype, of, of.in));
  problem.expect_match([&](Context& ctx, const Views& v) { op(ctx, v[0], v[1], v[2], v[3]); },
                       kernel + ", experts_backward_input of " + of.text());
}

/// Gradients in f32, and with bf16 in bf16 too.
template <class Op>
void expect_backward_weight(const ExpertsCase& of, DType dtype, const Op& op,
                            const std::string& kernel) {
  std::vector<DType> of_gradients = {DType::f32};
  if (dtype == DType::bf16) of_gradients.push_back(DType::bf16);
  for (const DType gradient : of_gradients) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      const Shape shape = {of.experts() * of.out, of.in};
      Problem problem(dtype);
      problem.input(rows_with_unused(dtype, of, of.out, 5))
          .input(rows_with_unused(dtype, of, of.in, 6))
          .fixed(of.first_rows())
          .in_out(accumulate == Accumulate::yes ? random_tensor(gradient, shape, 7)
                                                : poisoned(gradient, shape));
      problem.expect_match(
          [&](Context& ctx, const Views& v) { op(ctx, v[0], v[1], v[2], accumulate, v[3]); },
          kernel + ", experts_backward_weight in " + std::string(name_of(gradient)) + " of " +
              of.text());
    }
  }
}

}  // namespace hyperslab::ops::test
