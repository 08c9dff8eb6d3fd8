// SPDX-License-Identifier: Apache-2.0
// Elements in buffers, and their copies between two buffers of a rank.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/layout/layout.hpp"

namespace hyperslab::layout {

/// The elements of tensors that lie in a buffer.
struct Contents {
  struct Entry {
    std::size_t tensor = 0;
    Hyperslab slab;
    Dim begin = 0;  ///< first element in the buffer, where the hyperslab lies row-major
  };
  std::vector<Entry> entries;  ///< one after the other
  Dim size = 0;                ///< elements of the buffer; more than those of `entries`: padding

  void add(std::size_t tensor, const Hyperslab& slab);
  /// Puts another buffer behind this one.
  void append(const Contents& other);
  [[nodiscard]] Dim elements() const;  ///< without padding
};

/// Those of a rank's buffer.
[[nodiscard]] Contents contents_of(const mesh::Position& at, std::span<const Shape> shapes,
                                   const Layout& layout);

/// The elements that both hold, in the order in which `from` has them.
[[nodiscard]] Contents common(const Contents& from, const Contents& to);

/// Enqueues to = from, unless they are one buffer.
void copy_unless_same(Context& ctx, CView from, View to);

/// Copies the elements of one buffer to their places in another.
class LocalCopy {
 public:
  LocalCopy() = default;
  /// Copies those that both hold; the other elements of the target become zero.
  LocalCopy(const Contents& from, const Contents& to);
  /// True if every element already lies at its place, so that one buffer can serve as both. What
  /// lies in its gaps is padding of `from`.
  [[nodiscard]] bool is_in_place() const { return in_place_; }
  [[nodiscard]] bool has_gaps() const { return !gaps_.empty(); }
  /// Enqueues the copies; flat views of equal dtypes.
  void run(Context& ctx, View from, View to) const;

 private:
  /// Rows of `width` elements. Rows are `pitch` apart on one side, at its column `column`, and lie
  /// one after the other on the other side.
  struct Block {
    enum class Kind : std::uint8_t { dense, take_columns, put_columns } kind = Kind::dense;
    Dim source = 0;  ///< first element; of the side with columns that of its first row
    Dim target = 0;
    Dim rows = 1;
    Dim width = 0;
    Dim pitch = 0;
    Dim column = 0;
  };
  struct Range {
    Dim begin = 0;
    Dim count = 0;
  };
  static Block block_of(const Contents::Entry& from, const Contents::Entry& to,
                        const Hyperslab& common);
  void add(const Block& block);
  static void run(Context& ctx, const Block& block, View from, View to);

  std::vector<Block> blocks_;
  std::vector<Range> gaps_;  ///< elements of the target that become zero
  bool in_place_ = true;
};

}  // namespace hyperslab::layout
