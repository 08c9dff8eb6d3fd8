// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/optim/optimizer.hpp"

namespace hyperslab::optim {

/// Carries masters and optimizer state between the host's memory, where they rest, and the device,
/// where they are updated. Chunks take turns in a few slots: one is on its way to the device and
/// another on its way back while a third is updated, so both directions of the link work at once.
///
/// The first chunks of a step may have slots of their own. They stay on the device from step to
/// step, newer than what the host has, until wait() takes them back.
///
/// A chunk of at most chunk_elements() is brought, updated on the context's stream, and taken back:
///   const std::span<const View> here = transit.bring(ctx, chunk);
///   ... ops on `here` ...
///   transit.take_back(ctx, chunk);
class StateTransit {
 public:
  /// `buffers` move together, entry by entry: masters, moments. `host`: the ranges that are cut
  /// into chunks, and the most bytes of those that stay. Takes the slots from `device`.
  StateTransit(std::vector<param::StateView> buffers, const StatePlace::OnHost& host,
               Arena& device);

  /// The most elements that bring() takes.
  [[nodiscard]] Dim chunk_elements() const { return chunk_elements_; }
  /// Bytes that come to the device in a step, by range, without the chunks that stay there.
  [[nodiscard]] std::vector<std::size_t> moved_bytes() const { return moved_bytes_; }
  /// Begins a step: chunks that are brought from now on hold what work enqueued on ctx so far has
  /// written.
  void begin(Context& ctx);
  /// Views on the device of the chunk's part of every buffer, for work enqueued on ctx. Valid until
  /// take_back(). Steps bring the same chunks in the same order.
  [[nodiscard]] std::span<const View> bring(Context& ctx, const param::ElementRange& chunk);
  /// Sends the chunk that was brought last back, after the work enqueued on ctx so far.
  void take_back(Context& ctx, const param::ElementRange& chunk);
  /// Makes work that is enqueued on ctx after this call see every update on the host. ctx has
  /// waited for the updates.
  void wait(Context& ctx);

 private:
  struct Slot {
    std::vector<View> buffers;       ///< parts of all buffers
    param::ElementRange chunk = {};  ///< the last one
    bool is_newer = false;           ///< the host lacks the chunk's last update
    Event free = {};                 ///< the last chunk is back on the host
  };
  struct Links {
    explicit Links(Device device) : to_device(device), to_host(device) {}
    Stream to_device;
    Stream to_host;
  };
  [[nodiscard]] std::size_t bytes_of(Dim elements) const;
  [[nodiscard]] Slot slot_in(Arena& device, Dim elements) const;
  [[nodiscard]] bool stays(std::size_t number) const { return number < resident_.size(); }
  [[nodiscard]] Slot& slot_of(std::size_t number);
  /// Enqueues the way back of a slot's chunk.
  void send_back(Slot& slot);

  std::vector<param::StateView> buffers_;
  Dim chunk_elements_;
  std::vector<std::size_t> moved_bytes_;  ///< by range
  std::vector<Slot> resident_;
  std::vector<Slot> passing_;
  std::vector<View> here_;        ///< parts of the chunk that was brought last
  std::size_t number_ = 0;        ///< number of the next chunk in its step
  std::unique_ptr<Links> links_;  ///< from the first step on
};

}  // namespace hyperslab::optim
