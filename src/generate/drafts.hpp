// SPDX-License-Identifier: Apache-2.0
// Tokens that are guessed before the model says them (speculative decoding).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hyperslab/generate/sampling.hpp"

namespace hyperslab::generate {

/// Guesses of the tokens that follow a text.
struct Draft {
  std::size_t id = 0;                    ///< the text's
  std::span<const std::int32_t> text{};  ///< all of its tokens
  Sampler* sampler = nullptr;            ///< by which it is continued
  bool is_drawn = false;                 ///< its tokens are draws: not at temperature 0
  bool needs_logits = false;             ///< they are, or depend on those before
  std::int64_t most = 0;                 ///< guesses that are wanted at most

  std::vector<std::int32_t> tokens{};
  std::vector<std::vector<double>> weights{};  ///< by which they were drawn; empty: no draws

  /// The guess of token `i` of those that follow.
  [[nodiscard]] DraftedToken at(std::size_t i) const {
    return {tokens[i], weights.empty() ? std::span<const double>() : weights[i]};
  }
};

/// A source of drafts, which knows texts by their ids.
class Drafter {
 public:
  Drafter() = default;
  virtual ~Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;
  Drafter(Drafter&&) = delete;
  Drafter& operator=(Drafter&&) = delete;

  /// Fills tokens and weights of each draft; none where it has no guess.
  virtual void draft(std::span<Draft> drafts) = 0;
  /// True if guesses for texts that are drawn are draws, too, whose weights are given.
  [[nodiscard]] virtual bool draws() const = 0;
  /// A text has ended.
  virtual void end(std::size_t id) = 0;
};

/// The tokens that followed the last ones of a text where these stood before (prompt lookup,
/// Saxena 2023): after the longest such match of 2 to 8 tokens, of equally long ones the latest. A
/// match next to the end goes on with its own guesses, so that a short period is repeated. At most
/// `most`; none without a match. Work: O(tokens of the text).
[[nodiscard]] std::vector<std::int32_t> look_up(std::span<const std::int32_t> text,
                                                std::int64_t most);

/// Looks up each text in itself.
class PromptLookup final : public Drafter {
 public:
  void draft(std::span<Draft> drafts) override;
  [[nodiscard]] bool draws() const override { return false; }
  void end(std::size_t /*id*/) override {}
};

/// The number of tokens to guess for a text, by what became of its earlier drafts. A draft that
/// held as a whole doubles it, up to the most that was asked for; another one leaves one more than
/// held. Where a single guess fails, the text goes on without one for 1, 2, 4, .. 16 passes.
class DraftLength {
 public:
  explicit DraftLength(std::int64_t most) : most_(most), length_(most) {}
  /// The length for the next pass; 0: no draft. To be called once for each.
  [[nodiscard]] std::int64_t next();
  /// `accepted` of `drafted` tokens held, drafted above 0.
  void record(std::int64_t drafted, std::int64_t accepted);

 private:
  std::int64_t most_;
  std::int64_t length_;
  std::int64_t pause_ = 1;  ///< passes after the next failure of a single guess
  std::int64_t rests_ = 0;  ///< passes still to go without a draft
};

}  // namespace hyperslab::generate
