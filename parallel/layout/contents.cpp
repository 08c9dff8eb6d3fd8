// SPDX-License-Identifier: Apache-2.0
#include "contents.hpp"

#include <optional>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/columns.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::layout {

void Contents::add(std::size_t tensor, const Hyperslab& slab) {
  entries.push_back({tensor, slab, size});
  size += slab.numel();
}

void Contents::append(const Contents& other) {
  for (Entry entry : other.entries) {
    entry.begin += size;
    entries.push_back(entry);
  }
  size += other.size;
}

Dim Contents::elements() const {
  Dim sum = 0;
  for (const Entry& entry : entries) sum += entry.slab.numel();
  return sum;
}

Contents contents_of(const mesh::Position& at, std::span<const Shape> shapes,
                     const Layout& layout) {
  Contents contents;
  const auto slabs = held(at, shapes, layout);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    for (const Hyperslab& slab : slabs[i]) contents.add(i, slab);
  }
  contents.size = buffer_elements(at, shapes, layout);
  return contents;
}

namespace {

/// Calls work(entry of `from`, entry of `to`, elements that both hold).
template <class Work>
void for_common(const Contents& from, const Contents& to, Work work) {
  for (const Contents::Entry& source : from.entries) {
    for (const Contents::Entry& target : to.entries) {
      if (source.tensor != target.tensor) continue;
      if (const auto common = intersect(source.slab, target.slab)) work(source, target, *common);
    }
  }
}

}  // namespace

Contents common(const Contents& from, const Contents& to) {
  Contents both;
  for_common(from, to, [&](const auto& source, const auto&, const Hyperslab& slab) {
    both.add(source.tensor, slab);
  });
  return both;
}

void copy_unless_same(Context& ctx, CView from, View to) {
  if (from.numel() > 0 && from.raw() != to.raw()) copy(ctx, from, to);
}

LocalCopy::LocalCopy(const Contents& from, const Contents& to) {
  for_common(from, to, [&](const auto& source, const auto& target, const Hyperslab& slab) {
    add(block_of(source, target, slab));
  });
  Dim end = 0;  // the entries so far end here
  const auto add_gap = [&](Dim next) {
    if (next > end) gaps_.push_back({end, next - end});
  };
  for (const Contents::Entry& entry : to.entries) {
    add_gap(entry.begin);
    end = entry.begin + entry.slab.numel();
  }
  add_gap(to.size);
  for (const Block& block : blocks_) {
    in_place_ = in_place_ && block.kind == Block::Kind::dense && block.source == block.target;
  }
  for (const Range& gap : gaps_) in_place_ = in_place_ && gap.begin >= from.elements();
}

LocalCopy::Block LocalCopy::block_of(const Contents::Entry& from, const Contents::Entry& to,
                                     const Hyperslab& common) {
  const HyperslabRuns runs(from.slab, to.slab, common);
  Block block;
  block.source = from.begin + runs[0].source;
  block.target = to.begin + runs[0].target;
  block.width = runs.length();
  if (runs.size() == 1) return block;
  // Tensors have two dimensions, so runs are parts of rows.
  block.rows = runs.size();
  const Dim from_pitch = from.slab.count[1];
  const Dim to_pitch = to.slab.count[1];
  const bool takes = from_pitch > block.width;
  require(!takes || to_pitch == block.width, "a copy has columns on both sides");
  block.kind = takes ? Block::Kind::take_columns : Block::Kind::put_columns;
  block.pitch = takes ? from_pitch : to_pitch;
  block.column = common.offset[1] - (takes ? from : to).slab.offset[1];
  (takes ? block.source : block.target) -= block.column;
  return block;
}

/// Joins copies that continue each other.
void LocalCopy::add(const Block& block) {
  if (!blocks_.empty() && block.kind == Block::Kind::dense) {
    Block& last = blocks_.back();
    if (last.kind == Block::Kind::dense && last.source + last.width == block.source &&
        last.target + last.width == block.target) {
      last.width += block.width;
      return;
    }
  }
  blocks_.push_back(block);
}

void LocalCopy::run(Context& ctx, const Block& block, View from, View to) {
  const auto columns = [&](View view, Dim begin) {
    return view.slice(begin, block.rows * block.pitch).reshaped({block.rows, block.pitch});
  };
  const auto rows = [&](View view, Dim begin) {
    return view.slice(begin, block.rows * block.width).reshaped({block.rows, block.width});
  };
  switch (block.kind) {
    case Block::Kind::dense:
      return copy_unless_same(ctx, from.slice(block.source, block.width),
                              to.slice(block.target, block.width));
    case Block::Kind::take_columns:
      return ops::take_columns(ctx, columns(from, block.source), block.column,
                               rows(to, block.target));
    case Block::Kind::put_columns:
      return ops::put_columns(ctx, rows(from, block.source), block.column,
                              columns(to, block.target));
  }
}

void LocalCopy::run(Context& ctx, View from, View to) const {
  for (const Block& block : blocks_) run(ctx, block, from, to);
  for (const Range& gap : gaps_) ops::fill(ctx, 0, to.slice(gap.begin, gap.count));
}

}  // namespace hyperslab::layout
