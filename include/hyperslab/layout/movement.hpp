// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/layout/layout.hpp"
#include "hyperslab/mesh/mesh.hpp"

namespace hyperslab::layout {

/// A part of a movement.
struct Step {
  enum class Kind : std::uint8_t {
    // Calls of a communicator.
    all_gather,
    all_reduce,
    reduce_scatter,
    broadcast,
    all_to_all,    ///< messages between shards of one dimension and of another
    agree_scales,  ///< maxima of the matrices' values, from which FP8 scales follow
    exchange,      ///< messages between any other layouts
    // Work of this rank alone.
    slice,      ///< keeps some of the elements
    pack,       ///< brings elements into the order in which a communicator takes them
    unpack,     ///< brings elements from the order in which a communicator gives them
    cast,       ///< to another dtype
    encode,     ///< to FP8 values, or quantized
    decode,     ///< from there
    to_device,  ///< from the host's memory
    to_host,
    copy,  ///< changes nothing
  };
  Kind kind = Kind::copy;
  mesh::AxisSet axes = {};  ///< axes of the group; none for work of this rank alone
  /// A communicator's: those that it counts on this rank, the messages to itself left out. Others:
  /// those that this rank writes.
  std::size_t bytes = 0;
  [[nodiscard]] bool communicates() const { return kind <= Kind::exchange; }
  friend bool operator==(const Step&, const Step&) = default;
};
[[nodiscard]] std::string_view name_of(Step::Kind kind);
/// "all_gather over fold, 4096 bytes"
[[nodiscard]] std::string describe(const Step& step);

struct MovementPlan;

/// Takes tensors from one layout to another. Every decision is made by plan(), at setup.
///
/// Example: gradients of a bucket, terms of a sum on each rank, become the sums in each rank's
/// range:
///   Movement reduce = Movement::plan(mesh, shapes, Layout{}.with(kShards, partial()),
///                                    Layout{}.with(kShards, flat()));
///   reduce.start(ctx, gradients, shard, scratch);
///   ... ops ...
///   reduce.wait(ctx);
class Movement {
 public:
  /// `mesh` outlives the movement, and has a group over the axes of each step. Throws
  /// Error(usage) that names both layouts and what does not go: a tensor that cannot be cut so, an
  /// axis along which values would become terms of a sum, dtypes that are not floating, but for
  /// bytes (u8) that stay bytes.
  [[nodiscard]] static Movement plan(const mesh::Mesh& mesh, std::span<const Shape> shapes,
                                     const Layout& from, const Layout& to);
  Movement(Movement&&) noexcept;
  Movement& operator=(Movement&&) noexcept;
  Movement(const Movement&) = delete;
  Movement& operator=(const Movement&) = delete;
  ~Movement();

  /// In the order in which they are done. Steps that communicate are alike on all ranks.
  [[nodiscard]] std::span<const Step> steps() const&;
  [[nodiscard]] std::span<const Step> steps() const&& = delete;  // they are the movement's
  /// Bytes of all steps that communicate, on this rank.
  [[nodiscard]] std::size_t bytes() const;
  /// Bytes that start() needs to work in.
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// Elements of the buffers that start() takes. One whose layout has no flat axes has room for the
  /// padding of the other's ranges if that saves a copy.
  [[nodiscard]] Dim from_elements() const;
  [[nodiscard]] Dim to_elements() const;

  /// Starts the movement, by all ranks in the same order. Enqueues the first steps up to one that
  /// communicates, and neither allocates nor waits for it.
  ///
  /// from, to: buffers of the layouts, of at least from_elements() and to_elements(); absent if
  /// that is 0. scratch: at least scratch_bytes(), at a multiple of 256 bytes. They must live until
  /// wait() has passed. A `from` whose terms are summed is undefined afterwards. `to` may be
  /// `from`, or this rank's part of it (or the other way round) where no element changes its place;
  /// else the three do not overlap. Padding of `to` is zero if that of `from` is.
  void start(Context& ctx, View from, View to, View scratch);
  /// Enqueues the other steps. Work that is enqueued after this call finds the elements in `to`; on
  /// the CPU it blocks, with progress, while the communicators work.
  void wait(Context& ctx);
  /// True between start() and wait() if there is something to wait for.
  [[nodiscard]] bool in_progress() const { return ticket_ != 0; }

 private:
  explicit Movement(std::unique_ptr<const MovementPlan> plan);
  [[nodiscard]] View room(std::size_t index) const;
  void advance(Context& ctx);

  std::unique_ptr<const MovementPlan> plan_;
  // Between start() and wait():
  View from_;
  View to_;
  View scratch_;
  std::size_t next_ = 0;  ///< the action that is to be started
  comm::Ticket ticket_ = 0;
};

}  // namespace hyperslab::layout
