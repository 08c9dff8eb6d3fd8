// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::optim {

/// Carries masters and optimizer state between the host's memory, where they rest, and the device,
/// where they are updated. Chunks take turns in a few slots: one is on its way to the device and
/// another on its way back while a third is updated, so both directions of the link work at once.
///
/// A chunk of `chunk_elements()` is brought, updated on the context's stream, and taken back:
///   const std::span<const View> here = transit.bring(ctx, chunk);
///   ... ops on `here` ...
///   transit.take_back(ctx, chunk);
class StateTransit {
 public:
  /// `buffers`: what moves, entry by entry alike: masters, moments. Takes the slots from `device`.
  StateTransit(std::vector<param::StateView> buffers, Arena& device);

  /// The most elements that bring() takes.
  [[nodiscard]] Dim chunk_elements() const { return chunk_elements_; }
  /// Chunks that are brought from now on hold what work enqueued on ctx so far has written.
  void begin(Context& ctx);
  /// Views on the device of the chunk's part of every buffer, for work enqueued on ctx. Valid until
  /// take_back().
  [[nodiscard]] std::span<const View> bring(Context& ctx, const param::ElementRange& chunk);
  /// Sends the chunk that was brought last back, after the work enqueued on ctx so far.
  void take_back(Context& ctx, const param::ElementRange& chunk);
  /// Makes work that is enqueued on ctx after this call see every chunk that was taken back.
  void wait(Context& ctx);

 private:
  static constexpr std::size_t kSlots = 3;
  [[nodiscard]] std::size_t bytes_of(const param::ElementRange& chunk) const;
  struct Slot {
    std::vector<View> buffers;  ///< of chunk_elements_
    Event free = {};            ///< its last chunk is back on the host
  };
  struct Links {
    explicit Links(Device device) : to_device(device), to_host(device) {}
    Stream to_device;
    Stream to_host;
  };

  std::vector<param::StateView> buffers_;
  Dim chunk_elements_;
  std::array<Slot, kSlots> slots_;
  std::vector<View> here_;  ///< of the chunk in slot next_
  std::size_t next_ = 0;
  std::optional<Links> links_;
};

}  // namespace hyperslab::optim
