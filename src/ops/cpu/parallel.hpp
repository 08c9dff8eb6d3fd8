// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/core/view.hpp"

namespace hyperslab::ops::cpu {

/// Below this much work, some ten microseconds, a loop is not worth waking the other threads: a
/// core that another program uses answers late. A loop's results do not depend on it.
inline constexpr Dim kSerialWork = 65536;
/// So many products of a matrix multiplication take as long as one element that is touched.
inline constexpr Dim kProductsOfElement = 16;

/// Work per item of a loop whose items are so many products each.
[[nodiscard]] constexpr Dim work_of_products(Dim products) {
  return products / kProductsOfElement + 1;
}
/// Work per item of a loop whose body calls a library that decides on threads, too: outside of a
/// parallel region it may take several, and its sums then have other bits.
[[nodiscard]] constexpr Dim work_of_calls(Dim elements) { return 8 * elements; }

/// Cuts [0, count) into `threads` equal ranges and calls body(chunk, begin, end) for each that is
/// not empty. The ranges depend on `threads` alone, so partial sums have the same bits in every
/// run. `work_per_item` is in elements touched.
template <class Body>
void parallel_chunks(int threads, Dim count, Dim work_per_item, Body&& body) {
  const bool worth_it = count * work_per_item > kSerialWork;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (worth_it)
  for (int chunk = 0; chunk < threads; ++chunk) {
    const Dim begin = count * chunk / threads;
    const Dim end = count * (chunk + 1) / threads;
    if (begin < end) body(chunk, begin, end);
  }
}

/// Calls body(float()) or body(double()).
template <class Body>
void with_real(DType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case DType::f32: return std::forward<Body>(body)(float());
    case DType::f64: return std::forward<Body>(body)(double());
    default:
      throw Error(ExitCode::internal,
                  std::string(op) + ": CPU ranks compute in f32 or f64, found " +
                      std::string(name_of(dtype)) + "; set precision.compute: fp32");
  }
}

/// Calls body with a value of the element type, which may be one that is only stored: bf16, f16.
template <class Body>
void with_floating(DType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case DType::bf16: return std::forward<Body>(body)(bf16());
    case DType::f16: return std::forward<Body>(body)(f16());
    default: return with_real(dtype, op, std::forward<Body>(body));
  }
}

/// The elements, or null if the view is absent.
template <class T>
const T* optional_data(CView view) {
  return view ? view.data<T>() : nullptr;
}
template <class T>
T* optional_data(View view) {
  return view ? view.data<T>() : nullptr;
}

/// sums[index] += value, whether the vector is f32 or f64.
inline void add_to_sums(View sums, int index, double value) {
  if (sums.dtype() == DType::f64) {
    sums.data<double>()[index] += value;
  } else {
    sums.data<float>()[index] += static_cast<float>(value);
  }
}
[[nodiscard]] inline double read_sums(CView sums, int index) {
  return sums.dtype() == DType::f64 ? sums.data<double>()[index]
                                    : static_cast<double>(sums.data<float>()[index]);
}

}  // namespace hyperslab::ops::cpu
