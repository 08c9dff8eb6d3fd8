// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "contents.hpp"
#include "hyperslab/layout/movement.hpp"

namespace hyperslab::layout {

/// Memory between two actions: the first room is `from`, the last one `to`, others are scratch.
struct Room {
  DType dtype = DType::f32;
  Dim elements = 0;
  std::size_t scratch_offset = 0;  ///< bytes
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(elements) * size_of(dtype);
  }
};

/// The messages with one member of a group, itself included.
struct PeerMessages {
  int peer = 0;
  Dim send_begin = 0;  ///< elements of the source
  Dim send_count = 0;
  Dim recv_begin = 0;  ///< elements of the target
  Dim recv_count = 0;
};

/// A step with all that it takes to do it.
struct Action {
  Step step;
  std::size_t source = 0;  ///< room
  std::size_t target = 0;  ///< room; the source's if a communicator works in place
  /// Elements that are cast or copied unchanged, or of the communicator's larger buffer.
  Dim elements = 0;
  comm::Communicator* group = nullptr;
  LocalCopy copy = {};                      ///< for slice, pack and unpack
  std::vector<PeerMessages> messages = {};  ///< for all_to_all and exchange
};

struct MovementPlan {
  std::vector<Room> rooms;
  std::vector<Action> actions;
  std::vector<Step> steps;  ///< the actions'
  std::size_t scratch_bytes = 0;
};

}  // namespace hyperslab::layout
