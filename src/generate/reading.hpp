// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "hyperslab/train/trainer.hpp"
#include "pass_orders.hpp"

namespace hyperslab::generate {

/// Rows and tokens of a pass as the device sees them.
struct Frame {
  Dim B;
  Dim T;
  Dim last;  ///< the last token of a row that counts
};

/// Reads new tokens of texts with a trainer, a pass at a time: one implementation for each
/// model::Generation that reads any.
class Reading {
 public:
  Reading() = default;
  virtual ~Reading() = default;
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  Reading(Reading&&) = delete;
  Reading& operator=(Reading&&) = delete;

  /// The frame of a pass over `texts`, with rows and tokens that only fill it. `most`: tokens that
  /// a text has at most in such passes, for which there is room in every row; 0: a prompt's.
  [[nodiscard]] virtual Frame frame_of(std::span<const RowRead> texts, Dim most) const = 0;
  /// Puts the pass's operands where enqueue() finds them, on the host.
  virtual void stage(std::span<const RowRead> texts, const Frame& frame) = 0;
  /// Enqueues the pass that was staged. logits: (frame.B, columns) of token `frame.last` of each
  /// row, or (frame.B frame.T, columns) of all tokens.
  virtual void enqueue(const Frame& frame, View logits) = 0;
  /// True if passes of one token in frames of equal size differ in nothing but staged operands, so
  /// that a graph repeats them.
  [[nodiscard]] virtual bool repeats() const = 0;
};

/// As the trainer was planned to, which must outlive it; `pass_tokens`: of a pass at most.
[[nodiscard]] std::unique_ptr<Reading> make_cached_reading(train::Trainer& trainer,
                                                           Dim pass_tokens);
[[nodiscard]] std::unique_ptr<Reading> make_whole_reading(train::Trainer& trainer);

}  // namespace hyperslab::generate
