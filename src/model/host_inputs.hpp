// SPDX-License-Identifier: Apache-2.0
// Inputs of blocks in the host's memory.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/context.hpp"

namespace hyperslab::model {

/// Carries the inputs of blocks that are computed again to the host's memory, where they rest from
/// forward to backward. On the device two rooms take turns: one input is on its way over the link
/// while the block of the other computes. Forward of a block:
///   const View room = inputs.fill(ctx, id);
///   ... ops that write the room ...
///   inputs.take_away(ctx, id);
/// Its backward begins with
///   const CView input = inputs.bring(ctx, id);
/// which also starts to bring the input that was planned before this one.
class HostInputs {
 public:
  /// Takes the rooms from `device`; inputs have the shape of the stream.
  HostInputs(Arena& device, Arena& host, DType dtype, const Shape& stream);

  /// Takes the memory of an input and gives it a number. Inputs of a microbatch are planned in the
  /// order of the forward pass.
  [[nodiscard]] int plan(const std::string& label);
  /// A room for work that is enqueued on ctx after this call.
  [[nodiscard]] View fill(Context& ctx, int id);
  /// Sends the input to the host, after the work enqueued on ctx so far.
  void take_away(Context& ctx, int id);
  /// The input on the device, for work that is enqueued on ctx until the next call of fill() or
  /// bring() but one.
  [[nodiscard]] CView bring(Context& ctx, int id);

 private:
  static constexpr int kNone = -1;
  struct Room {
    View memory;
    int id = kNone;      ///< number of the input in it, or on its way to it
    Event taken = {};    ///< the input is on the host
    Event arrived = {};  ///< the input is here
  };
  struct Input {
    View on_host;
    Event taken = {};
  };
  struct Links {
    explicit Links(Device device) : to_device(device), to_host(device) {}
    Stream to_device;
    Stream to_host;
  };
  [[nodiscard]] Room& next_room();
  [[nodiscard]] Room* find(int id);
  void start(Context& ctx, int id);
  [[nodiscard]] Input& input(int id) { return inputs_.at(static_cast<std::size_t>(id)); }
  [[nodiscard]] Links& links(Context& ctx);

  Arena* host_;
  DType dtype_;
  Shape stream_;
  std::array<Room, 2> rooms_;
  std::size_t newest_ = 0;  ///< the room that was given out last
  std::vector<Input> inputs_;
  std::unique_ptr<Links> links_;
};

}  // namespace hyperslab::model
