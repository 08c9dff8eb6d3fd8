// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/dtype.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/checkpoint_diff.hpp"

namespace hyperslab::io {
namespace {

using Entry = CheckpointReader::TensorEntry;
constexpr Dim kMostElements = Dim{16} << 20;

/// Rows [begin, begin + count) of the first axis.
Hyperslab rows(const Shape& shape, Dim begin, Dim count) {
  if (shape.rank() == 0) return Hyperslab::whole(shape);
  std::vector<Dim> offset(static_cast<std::size_t>(shape.rank()), 0);
  std::vector<Dim> counts(shape.dims().begin(), shape.dims().end());
  offset[0] = begin;
  counts[0] = count;
  return {Shape(offset), Shape(counts)};
}

Tensor read_part(const CheckpointReader& reader, const std::string& name, const Entry& entry,
                 const Hyperslab& part) {
  Tensor out(Device::cpu, entry.dtype, part.count);
  const SlabTarget target = {name, entry.global_shape, part, out.view()};
  reader.read({&target, 1});
  return out;
}

double value_of(const CView& data, Dim i) {
  if (data.dtype() == DType::f16) return to_float(data.data<f16>()[i]);
  if (data.dtype() == DType::u8) return data.data<std::uint8_t>()[i];
  return data.data<float>()[i];
}

/// Index of an element of a row-major tensor.
Shape index_of(Dim element, const Shape& shape) {
  std::vector<Dim> index(static_cast<std::size_t>(shape.rank()), 0);
  for (int axis = shape.rank(); axis-- > 0;) {
    index[static_cast<std::size_t>(axis)] = element % shape[axis];
    element /= shape[axis];
  }
  return Shape(index);
}

/// Sums over the parts of one tensor.
class Comparison {
 public:
  explicit Comparison(const std::string& name) { found_.tensor = name; }

  /// `begin`: of the part's first element in the tensor.
  void add(const CView& a, const CView& b, Dim begin) {
    for (Dim i = 0; i < a.numel(); ++i) add(value_of(a, i), value_of(b, i), begin + i);
    found_.elements += a.numel();
  }
  [[nodiscard]] std::optional<TensorDifference> result(const Shape& shape) {
    if (found_.unequal == 0) return std::nullopt;
    found_.where = index_of(where_, shape);
    found_.relative_norm = std::sqrt(differences_ / squares_);
    return found_;
  }

 private:
  void add(double a, double b, Dim element) {
    const bool finite = std::isfinite(a) && std::isfinite(b);
    if (!finite) ++found_.not_finite;
    if (finite) squares_ += a * a;
    if (a == b || (std::isnan(a) && std::isnan(b))) return;
    const double difference = finite ? std::abs(a - b) : std::numeric_limits<double>::infinity();
    if (finite) differences_ += difference * difference;
    if (found_.unequal++ > 0 && difference <= found_.largest) return;
    found_.largest = difference;
    where_ = element;
  }

  TensorDifference found_;
  Dim where_ = 0;
  double differences_ = 0;
  double squares_ = 0;
};

std::optional<TensorDifference> compare_values(const CheckpointReader& first,
                                               const CheckpointReader& second,
                                               const std::string& name, const Entry& entry) {
  const Shape& shape = entry.global_shape;
  const Dim all = shape.rank() == 0 ? 1 : shape[0];
  const Dim row = all == 0 ? 0 : shape.numel() / all;
  const Dim at_once = std::max<Dim>(1, kMostElements / std::max<Dim>(1, row));
  Comparison comparison(name);
  for (Dim begin = 0; begin < all; begin += at_once) {
    const Hyperslab part = rows(shape, begin, std::min(at_once, all - begin));
    const Tensor a = read_part(first, name, entry, part);
    const Tensor b = read_part(second, name, entry, part);
    comparison.add(a.view(), b.view(), begin * row);
  }
  return comparison.result(shape);
}

std::string problem_of(const Entry& a, const Entry& b) {
  if (a.global_shape != b.global_shape) {
    return fmt::format("shape {} and {}", a.global_shape.str(), b.global_shape.str());
  }
  if (a.dtype != b.dtype) return fmt::format("dtype {} and {}", name_of(a.dtype), name_of(b.dtype));
  return "";
}

}  // namespace

std::vector<TensorDifference> compare(const CheckpointReader& first,
                                      const CheckpointReader& second) {
  std::vector<TensorDifference> found;
  const auto add_problem = [&](const std::string& name, const std::string& problem) {
    found.push_back({name, problem, 0, 0, 0, {}, 0, 0});
  };
  for (const auto& [name, entry] : first.tensors()) {
    const auto other = second.tensors().find(name);
    if (other == second.tensors().end()) {
      add_problem(name, "only in the first");
      continue;
    }
    const std::string problem = problem_of(entry, other->second);
    if (!problem.empty()) {
      add_problem(name, problem);
    } else if (auto difference = compare_values(first, second, name, entry)) {
      found.push_back(*difference);
    }
  }
  for (const auto& [name, entry] : second.tensors()) {
    if (!first.tensors().contains(name)) add_problem(name, "only in the second");
  }
  std::ranges::sort(found, {}, &TensorDifference::tensor);
  return found;
}

}  // namespace hyperslab::io
