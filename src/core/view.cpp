// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/view.hpp"

#include <algorithm>

#include "hyperslab/core/error.hpp"

namespace hyperslab {

Shape::Shape(std::initializer_list<Dim> dims)
    : Shape(std::span<const Dim>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const Dim> dims) : rank_(static_cast<int>(dims.size())) {
  require(dims.size() <= kMaxRank, "a shape has at most 5 dimensions");
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

Dim Shape::numel() const {
  Dim product = 1;
  for (const Dim dim : dims()) product *= dim;
  return product;
}

std::string Shape::str() const {
  std::string text = "(";
  for (int i = 0; i < rank_; ++i) text += (i > 0 ? ", " : "") + std::to_string((*this)[i]);
  return text + ")";
}

bool operator==(const Shape& a, const Shape& b) { return std::ranges::equal(a.dims(), b.dims()); }

void throw_shape_error(std::string_view what, const Shape& found, std::string_view expected,
                       std::source_location where) {
  throw Error(
      ExitCode::internal,
      std::string(what) + ": has shape " + found.str() + ", expected " + std::string(expected),
      where);
}

template <bool IsConst>
void BasicView<IsConst>::throw_dtype_error(DType expected, DType found,
                                           std::source_location where) {
  throw Error(
      ExitCode::internal,
      "view holds " + std::string(name_of(found)) + ", expected " + std::string(name_of(expected)),
      where);
}

template class BasicView<false>;
template class BasicView<true>;

}  // namespace hyperslab
