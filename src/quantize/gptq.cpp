// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/quantize/gptq.hpp"

#include <algorithm>
#include <cmath>

#include "hyperslab/core/error.hpp"

// OpenBLAS and every other LAPACK; column-major, all arguments by address.
// NOLINTBEGIN(readability-identifier-naming): Fortran's names
extern "C" {
void dpotrf_(const char* triangle, const int* n, double* a, const int* lda, int* info);
void dpotri_(const char* triangle, const int* n, double* a, const int* lda, int* info);
}
// NOLINTEND(readability-identifier-naming)

namespace hyperslab::quantize {
namespace {

constexpr Dim kRowsAtOnce = 8;  // that share a row of the factor while it is in the cache

void require_done(int info, const char* what) {
  if (info == 0) return;
  throw Error(ExitCode::numerics,
              std::string("calibration: ") + what +
                  " of the inputs' products failed; they are not finite or not independent enough: "
                  "give more samples");
}

/// The largest code, and the scale of a group as it is stored.
struct MatrixRounding {
  bool int8;
  [[nodiscard]] float most() const { return int8 ? 127.0F : 7.0F; }
  [[nodiscard]] float scale_of(const float* values, Dim count) const {
    float largest = 0;
    for (Dim i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
    const float scale = largest / most();
    return int8 ? scale : to_float(to_f16(scale));
  }
  [[nodiscard]] int code_of(float value, float scale) const {
    if (!(scale > 0)) return 0;
    return static_cast<int>(std::nearbyint(std::clamp(value / scale, -most(), most())));
  }
};

/// Rows [first, last) of a matrix on their way to codes.
class Rows {
 public:
  Rows(const ErrorModel& errors, View weight, const ops::QuantizedMatrix& out)
      : errors_(errors),
        weight_(weight),
        out_(out),
        rounding_{out.format == ops::WeightFormat::int8} {}

  void round(Dim first, Dim last) const {
    const Dim K = errors_.columns();
    float scales[kRowsAtOnce] = {};
    for (Dim column = 0; column < K; ++column) {
      const float* factor = errors_.row(column);
      const Dim rest = K - column;
      for (Dim row = first; row < last; ++row) {
        float* values = weight_.data<float>() + row * K + column;
        float& scale = scales[row - first];
        if (column % out_.group == 0) scale = start_group(row, column, values);
        if (errors_.is_dead(column)) values[0] = 0;
        const int code = rounding_.code_of(values[0], scale);
        store(row, column, code);
        const float error = (values[0] - static_cast<float>(code) * scale) / factor[0];
        for (Dim i = 1; i < rest; ++i) values[i] -= error * factor[i];
      }
    }
  }

 private:
  [[nodiscard]] float start_group(Dim row, Dim column, const float* values) const {
    const float scale = rounding_.scale_of(values, out_.group);
    const Dim index = row * (errors_.columns() / out_.group) + column / out_.group;
    if (rounding_.int8) {
      out_.scales.data<float>()[index] = scale;
    } else {
      out_.scales.data<f16>()[index] = to_f16(scale);
    }
    return scale;
  }
  void store(Dim row, Dim column, int code) const {
    auto* codes = out_.codes.data<std::uint8_t>();
    const Dim element = row * errors_.columns() + column;
    if (rounding_.int8) {
      codes[element] = static_cast<std::uint8_t>(code);
      return;
    }
    const auto bits = static_cast<unsigned>(code + 8);
    std::uint8_t& pair = codes[element / 2];
    pair = static_cast<std::uint8_t>(element % 2 == 0 ? bits : pair | bits << 4U);
  }

  const ErrorModel& errors_;
  View weight_;
  const ops::QuantizedMatrix& out_;
  MatrixRounding rounding_;
};

}  // namespace

ErrorModel::ErrorModel(std::vector<double> products, Dim columns, double damping)
    : columns_(columns), dead_(static_cast<std::size_t>(columns)) {
  const auto n = static_cast<std::size_t>(columns);
  const auto is_finite = [](double value) { return std::isfinite(value); };
  require_done(std::ranges::all_of(products, is_finite) ? 0 : 1, "the sum");
  double mean = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double& diagonal = products[i * n + i];
    dead_[i] = diagonal == 0;
    if (dead_[i]) diagonal = 1;
    mean += diagonal / static_cast<double>(n);
  }
  for (std::size_t i = 0; i < n; ++i) products[i * n + i] += damping * mean;
  // The matrix is symmetric: row-major is column-major.
  const auto size = static_cast<int>(columns);
  int info = 0;
  dpotrf_("L", &size, products.data(), &size, &info);
  require_done(info, "the factorization");
  dpotri_("L", &size, products.data(), &size, &info);
  require_done(info, "the inversion");
  // The inverse lies in the column-major lower triangle: element (row, column) at column * n + row.
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t column = row + 1; column < n; ++column) {
      products[column * n + row] = products[row * n + column];
    }
  }
  dpotrf_("U", &size, products.data(), &size, &info);
  require_done(info, "the second factorization");
  factor_.resize(n * n);
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t column = row; column < n; ++column) {
      factor_[row * n + column] = static_cast<float>(products[column * n + row]);
    }
  }
}

void round_compensating(const ErrorModel& errors, View weight, const ops::QuantizedMatrix& out) {
  const auto sizes = weight.dims<2>("round_compensating weight");
  const Dim M = sizes[0];
  require(sizes[1] == errors.columns(), "the inputs of another layer");
  require(out.format != ops::WeightFormat::nf4, "nf4 is not rounded with compensation");
  const Rows rows(errors, weight, out);
  const Dim tiles = (M + kRowsAtOnce - 1) / kRowsAtOnce;
#pragma omp parallel for schedule(dynamic)
  for (Dim tile = 0; tile < tiles; ++tile) {
    rows.round(tile * kRowsAtOnce, std::min(M, (tile + 1) * kRowsAtOnce));
  }
}

}  // namespace hyperslab::quantize
