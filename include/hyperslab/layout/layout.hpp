// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/mesh/position.hpp"

namespace hyperslab::layout {

/// Elements of a flat range are whole units of so many: 128 bytes of f32. Ranges do not depend on
/// the dtype, so that an f32 master lies beside its bf16 value.
inline constexpr Dim kFlatGranule = 128 / 4;

/// The elements of tensors that the ranks along one axis of the mesh hold.
struct Placement {
  enum class Kind : std::uint8_t {
    replicate,  ///< every rank holds all of them
    shard,      ///< every rank holds an equal part of dimension `dim`
    flat,       ///< every rank holds an equal range of all tensors, one after the other
    partial,    ///< every rank holds a term of a sum
    owner,      ///< the first rank holds all of them, the others none
  };
  Kind kind = Kind::replicate;
  int dim = 0;  ///< dimension that Kind::shard cuts
  [[nodiscard]] bool is_shard() const { return kind == Kind::shard; }
  [[nodiscard]] bool is_flat() const { return kind == Kind::flat; }
  [[nodiscard]] bool is_partial() const { return kind == Kind::partial; }
  [[nodiscard]] bool is_owner() const { return kind == Kind::owner; }
  /// True if every rank along the axis holds another part.
  [[nodiscard]] bool cuts() const { return is_shard() || is_flat(); }
  friend bool operator==(const Placement&, const Placement&) = default;
};
[[nodiscard]] constexpr Placement replicate() { return {Placement::Kind::replicate, 0}; }
[[nodiscard]] constexpr Placement shard(int dim) { return {Placement::Kind::shard, dim}; }
[[nodiscard]] constexpr Placement flat() { return {Placement::Kind::flat, 0}; }
[[nodiscard]] constexpr Placement partial() { return {Placement::Kind::partial, 0}; }
[[nodiscard]] constexpr Placement owner() { return {Placement::Kind::owner, 0}; }

/// The storage of an element.
struct Format {
  DType dtype = DType::f32;
  friend bool operator==(const Format&, const Format&) = default;
};

/// Which elements of some tensors every rank of a mesh holds, in which format and memory.
///
/// Axes with `shard` cut each tensor, the slowest axis first. What is left is laid tensor after
/// tensor, row-major. The axes with `flat`, together, cut that into equal ranges, in the order of
/// the ranks; it is padded so that a range is whole granules of kFlatGranule elements. An axis of
/// one rank makes no difference.
///
/// A buffer of a layout holds a rank's elements in this order, and padding at its end.
///
/// Example: a (6, 4) weight with shard(0) over 2 tensor ranks and flat over 2 fold ranks. Tensor
/// rank 1 has rows 3 to 5, 12 elements; padded to 64, they are in the range of fold rank 0.
struct Layout {
  std::array<Placement, mesh::kAxes.size()> over = {};  ///< by axis, in the order of mesh::kAxes
  Format format = {};
  Home home = Home::device;

  [[nodiscard]] const Placement& operator[](mesh::Axis axis) const {
    return over[static_cast<std::size_t>(axis)];
  }
  /// This layout with another placement over some axes.
  [[nodiscard]] Layout with(mesh::AxisSet axes, Placement placement) const;
  /// The axes of a kind of placement.
  [[nodiscard]] mesh::AxisSet axes(Placement::Kind kind) const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// "shard(0) over tensor, flat over fold and expert, bf16, device"
[[nodiscard]] std::string describe(const Layout& layout);

/// Why tensors of these shapes cannot lie so; empty if they can. Tensors have one or two
/// dimensions, and the ranks of a shard divide their dimension. Names tensor, axis and numbers.
[[nodiscard]] std::string problem_of(const mesh::Position& at, std::span<const Shape> shapes,
                                     const Layout& layout);

/// The hyperslabs of each tensor that the rank at `at` holds, in the order of its buffer; none is
/// empty. Throws Error(usage) if there is a problem_of() the layout.
[[nodiscard]] std::vector<std::vector<Hyperslab>> held(const mesh::Position& at,
                                                       std::span<const Shape> shapes,
                                                       const Layout& layout);

/// Those of held() that this rank answers for, as in checkpoints and norms: over all ranks of the
/// mesh, each element exactly once. Of ranks that hold equal elements, or terms of a sum, it is the
/// first.
[[nodiscard]] std::vector<std::vector<Hyperslab>> owned(const mesh::Position& at,
                                                        std::span<const Shape> shapes,
                                                        const Layout& layout);

/// Elements of this rank's buffer, with padding. Throws as held().
[[nodiscard]] Dim buffer_elements(const mesh::Position& at, std::span<const Shape> shapes,
                                  const Layout& layout);

/// Elements of a rank's range if `elements` are cut over so many ranks.
[[nodiscard]] Dim flat_range(Dim elements, int ranks);

}  // namespace hyperslab::layout
