// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <initializer_list>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>

#include "hyperslab/core/device.hpp"
#include "hyperslab/core/dtype.hpp"

namespace hyperslab {

using Dim = std::int64_t;
inline constexpr int kMaxRank = 5;

/// Sizes of up to five dimensions, stored inline. Row-major: the last dimension varies fastest.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<Dim> dims);
  explicit Shape(std::span<const Dim> dims);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] Dim operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] Dim back() const { return dims_[static_cast<std::size_t>(rank_ - 1)]; }
  /// Product of all sizes; 1 for rank 0.
  [[nodiscard]] Dim numel() const;
  [[nodiscard]] std::span<const Dim> dims() const {
    return {dims_.data(), static_cast<std::size_t>(rank_)};
  }
  [[nodiscard]] std::string str() const;  ///< "(8, 256, 512)"
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<Dim, kMaxRank> dims_{};
  int rank_ = 0;
};

/// Throws an internal Error that names `what`, the shape found and the shape expected.
[[noreturn]] void throw_shape_error(std::string_view what, const Shape& found,
                                    std::string_view expected, std::source_location where);

/// A row-major, contiguous window on memory that someone else owns. Trivially copyable; a
/// default-constructed view is empty ("no bias here") and false.
template <bool IsConst>
class BasicView {
 public:
  using Pointer = std::conditional_t<IsConst, const void*, void*>;

  BasicView() = default;
  BasicView(Pointer data, DType dtype, Device device, Shape shape)
      : data_(data), shape_(shape), dtype_(dtype), device_(device), present_(true) {}
  /// A View is also a CView.
  template <bool OtherConst>
    requires(IsConst && !OtherConst)
  BasicView(const BasicView<OtherConst>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.raw()),
        shape_(other.shape()),
        dtype_(other.dtype()),
        device_(other.device()),
        present_(static_cast<bool>(other)) {}

  [[nodiscard]] explicit operator bool() const { return present_; }
  [[nodiscard]] Pointer raw() const { return data_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] Dim numel() const { return present_ ? shape_.numel() : 0; }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(numel()) * size_of(dtype_);
  }
  /// Rows, if the last dimension is a row.
  [[nodiscard]] Dim rows() const { return shape_.back() == 0 ? 0 : numel() / shape_.back(); }

  /// The elements; throws if T is not the dtype.
  template <class T>
  [[nodiscard]] std::conditional_t<IsConst, const T*, T*> data(
      std::source_location where = std::source_location::current()) const {
    if (dtype_of<T> != dtype_) throw_dtype_error(dtype_of<T>, dtype_, where);
    return static_cast<std::conditional_t<IsConst, const T*, T*>>(data_);
  }
  template <class T>
  [[nodiscard]] std::span<std::conditional_t<IsConst, const T, T>> span(
      std::source_location where = std::source_location::current()) const {
    return {data<T>(where), static_cast<std::size_t>(numel())};
  }
  /// The N sizes for a structured binding; throws with `what` if the rank differs.
  template <int N>
  [[nodiscard]] std::array<Dim, N> dims(
      std::string_view what, std::source_location where = std::source_location::current()) const {
    if (shape_.rank() != N) {
      throw_shape_error(what, shape_, std::to_string(N) + " dimensions", where);
    }
    std::array<Dim, N> out{};
    for (int i = 0; i < N; ++i) out[static_cast<std::size_t>(i)] = shape_[i];
    return out;
  }
  /// These elements under another shape of equal size.
  [[nodiscard]] BasicView reshaped(
      const Shape& shape, std::source_location where = std::source_location::current()) const {
    if (shape.numel() != numel()) throw_shape_error("reshaped view", shape_, shape.str(), where);
    return BasicView(data_, dtype_, device_, shape);
  }
  /// (rows, last dimension).
  [[nodiscard]] BasicView as_matrix() const { return reshaped({rows(), shape_.back()}); }
  [[nodiscard]] BasicView flat() const { return reshaped({numel()}); }
  /// Entries [begin, begin + count) of the first dimension.
  [[nodiscard]] BasicView slice(
      Dim begin, Dim count, std::source_location where = std::source_location::current()) const {
    if (shape_.rank() == 0 || begin < 0 || count < 0 || begin + count > shape_[0]) {
      throw_shape_error("slice", shape_, std::to_string(begin) + "+" + std::to_string(count),
                        where);
    }
    std::array<Dim, kMaxRank> dims{};
    Dim inner = 1;
    for (int i = 0; i < shape_.rank(); ++i) {
      dims[static_cast<std::size_t>(i)] = shape_[i];
      if (i > 0) inner *= shape_[i];
    }
    dims[0] = count;
    using Byte = std::conditional_t<IsConst, const std::byte, std::byte>;
    auto* start = static_cast<Byte*>(data_);
    const auto offset = static_cast<std::size_t>(begin * inner) * size_of(dtype_);
    // Meta views carry offsets from a null base, so the sum is done on integers.
    auto* moved = reinterpret_cast<Byte*>(reinterpret_cast<std::uintptr_t>(start) + offset);
    return BasicView(
        moved, dtype_, device_,
        Shape(std::span<const Dim>(dims.data(), static_cast<std::size_t>(shape_.rank()))));
  }

 private:
  [[noreturn]] static void throw_dtype_error(DType expected, DType found,
                                             std::source_location where);

  Pointer data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
  Device device_ = Device::cpu;
  bool present_ = false;
};

using View = BasicView<false>;
using CView = BasicView<true>;
extern template class BasicView<false>;
extern template class BasicView<true>;
static_assert(std::is_trivially_copyable_v<View> && std::is_trivially_copyable_v<CView>);

/// Throws an internal Error naming `what` unless the view has exactly this shape.
template <bool IsConst>
void require_shape(const BasicView<IsConst>& view, const Shape& expected, std::string_view what,
                   std::source_location where = std::source_location::current()) {
  if (!(view.shape() == expected)) throw_shape_error(what, view.shape(), expected.str(), where);
}

}  // namespace hyperslab
