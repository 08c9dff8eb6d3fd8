// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hyperslab/core/dtype.hpp"
#include "hyperslab/core/recorder.hpp"

namespace hyperslab {

/// The sizes of one call of an op on which its time depends.
struct OpSize {
  /// An operand as a matrix: the product of all sizes but the last, and the last; zeros if it is
  /// absent.
  struct Extent {
    double rows = 0;
    double columns = 0;
    friend bool operator==(const Extent&, const Extent&) = default;
  };
  double flops = 0;
  double bytes = 0;                   ///< bytes that a perfect implementation reads and writes
  DType dtype = DType::f32;           ///< dtype of the first operand
  std::vector<Extent> operands = {};  ///< sizes in the order in which the op names them
  friend bool operator==(const OpSize&, const OpSize&) = default;
};

/// One thing that a rank enqueues.
struct Operation {
  enum class Kind : std::uint8_t {
    compute,     ///< an op
    collective,  ///< a collective starts
    exchange,    ///< an exchange of messages starts
    wait,        ///< later operations need the collective or exchange of the ticket
  };
  struct Message {
    bool sends = false;
    int peer = 0;  ///< member of the group
    double bytes = 0;
  };
  Kind kind = Kind::compute;
  std::string_view name = {};       ///< name of the op, or the call: "all_reduce"; a literal
  std::string_view component = {};  ///< the recorder's innermost open scope; a literal
  Phase phase = Phase::other;
  int microbatch = -1;                 ///< -1: none
  OpSize size = {};                    ///< compute: size of the op
  std::string_view group = {};         ///< communication: name of the group; a literal
  std::uint64_t ticket = 0;            ///< communication: counted from 1 in each group
  double bytes = 0;                    ///< collective: bytes as Traffic counts them
  std::vector<Message> messages = {};  ///< exchange: its sends and receives
};

/// The operations that a context on `meta` enqueues on its compute stream, in order.
using OperationList = std::vector<Operation>;

}  // namespace hyperslab
