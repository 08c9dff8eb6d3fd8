// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hyperslab/core/graph.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/sample.hpp"
#include "hyperslab/train/trainer.hpp"
#include "pass_orders.hpp"
#include "reading.hpp"

namespace hyperslab::generate {

/// Logits of some tokens, as they come from the model and as the host reads them.
class LogitsBlock {
 public:
  LogitsBlock(DType compute, Device device, Dim tokens, Dim columns);

  [[nodiscard]] Dim tokens() const { return logits_.view().shape()[0]; }
  /// The first `tokens` rows on their way to the host.
  void fetch(Context& ctx, Dim tokens);
  /// (tokens, columns) on the device, in the compute dtype.
  [[nodiscard]] View view(Dim tokens) { return logits_.view().slice(0, tokens); }
  /// The first V columns of a row on the host; the rest is padding.
  [[nodiscard]] std::span<const float> row(std::size_t i, Dim V) const;

 private:
  Tensor logits_;
  Tensor widened_;  // logits_ in f32
  PinnedBuffer host_;
};

struct TextModelOptions {
  /// Tokens that follow one by one are graphs, if the device has them; never with several ranks.
  bool graphs = false;
  Dim vocabulary = 0;
  Dim draft_tokens = 0;  ///< guesses of a text that a pass of verify() reads at most
  int number = 0;        ///< names the model where the same ranks share several
};

/// A model that reads texts, one pass at a time, and gives logits of the next tokens. The texts so
/// far lie in pages, which the caller gives out (PagePool).
///
/// The ranks of a tensor group share each pass. Their first one leads; the others, which follow(),
/// read its texts with it, each with its part of the model and of the cache.
class TextModel {
 public:
  /// `ranks`: of the tensor group, which must outlive this; null: there is one.
  TextModel(train::Trainer& trainer, const TextModelOptions& options, comm::World* ranks);

  [[nodiscard]] bool is_alone() const { return orders_.is_alone(); }
  [[nodiscard]] bool leads() const { return orders_.leads(); }
  /// A rank that does not lead: takes part in passes until the leader lets it go, also in those of
  /// `second`, model 1 of the same ranks (null: there is none), and calls `load` where the leader
  /// asks for it.
  void follow(const std::function<void()>& load, TextModel* second = nullptr);
  /// The leader, at any time between passes: the others rest for a moment, so that they wait for a
  /// pass that comes much later without using their processors; or they are let go.
  void let_rest() { orders_.send(PassOrder::rest); }
  void let_go() { orders_.send(PassOrder::end); }
  /// The leader, between passes: the others call their `load`.
  void let_load() { orders_.send(PassOrder::load); }
  /// The leader: a pass has failed here, and other ranks may be within it.
  [[nodiscard]] bool has_failed() const { return has_failed_; }

  [[nodiscard]] Dim rows() const { return size_.rows; }
  [[nodiscard]] Dim context() const { return size_.tokens; }
  [[nodiscard]] Dim vocabulary() const { return options_.vocabulary; }
  [[nodiscard]] const model::CacheSize& cache() const { return size_; }
  /// Tokens of one pass at most.
  [[nodiscard]] Dim pass_tokens() const { return pass_tokens_; }
  /// Guesses of a text that verify() reads at most.
  [[nodiscard]] Dim draft_tokens() const { return options_.draft_tokens; }

  [[nodiscard]] int threads() const { return trainer_->context().threads(); }

  enum class Wanted : std::uint8_t {
    nothing,    ///< more tokens follow
    logits,     ///< logits of the last token of each row
    likeliest,  ///< tokens to follow each row, chosen where the model runs
    drawn       ///< tokens to follow, by each row's choice
  };
  /// As many tokens of each text, at most rows() texts and pass_tokens() tokens. `choices`: one of
  /// each text if drawn tokens are wanted.
  void read(std::span<const RowRead> texts, Wanted wanted,
            std::span<const ops::TokenChoice> choices = {});
  /// Reads texts as read() does; their last draft_tokens() tokens or fewer are guesses. Gives
  /// the wanted result after every token of every row. Rows may have fewer pages than tokens: those
  /// that lie behind the pages are read for nothing. `choices`: of every token, row by row.
  void verify(std::span<const RowRead> texts, Wanted wanted,
              std::span<const ops::TokenChoice> choices = {});
  /// The logits that the newest pass left, if it was asked for them: of a row that read() read, or
  /// after token `token` of one that verify() read.
  [[nodiscard]] std::span<const float> logits(std::size_t row, std::size_t token = 0) const {
    return newest_->row(result(row, token), options_.vocabulary);
  }
  /// The token that the newest pass chose there, if it was asked to; -1: logits are not finite.
  [[nodiscard]] std::int32_t chosen(std::size_t row, std::size_t token = 0) const;
  /// Also of a pass that chose tokens.
  void fetch_logits();
  /// As read(), with the logits after every token of every row: `to` has as many rows.
  void read_all(std::span<const RowRead> texts, LogitsBlock& to);
  [[nodiscard]] LogitsBlock make_block(Dim tokens) const;
  /// The bytes of one token's logits on the host.
  [[nodiscard]] std::size_t logits_row_bytes() const;

 private:
  [[nodiscard]] Dim most_results() const { return size_.rows * (1 + options_.draft_tokens); }
  void require_planned(std::span<const RowRead> texts) const;
  [[nodiscard]] std::size_t result(std::size_t row, std::size_t token) const {
    return row * static_cast<std::size_t>(results_of_row_) + token;
  }
  void stage(std::span<const ops::TokenChoice> choices, Dim texts);
  void enqueue_wanted(const Frame& frame, Wanted wanted);
  void obey(PassOrder order, std::span<const RowRead> rows);
  template <class Pass>
  void lead(PassOrder order, std::span<const RowRead> texts, Pass&& pass);
  void run(std::span<const RowRead> texts, Wanted wanted,
           std::span<const ops::TokenChoice> choices = {});
  void run_all(std::span<const RowRead> texts, LogitsBlock& to);
  void run_verify(std::span<const RowRead> texts, Wanted wanted,
                  std::span<const ops::TokenChoice> choices = {});

  train::Trainer* trainer_;
  TextModelOptions options_;
  PassOrders orders_;
  bool has_failed_ = false;
  model::CacheSize size_;
  Dim pass_tokens_;
  std::unique_ptr<Reading> reading_;
  std::map<std::pair<Dim, Wanted>, GraphSegment> segments_;  // by rows, of one token each
  Tensor chosen_;  // (rows (1 + draft_tokens)) on the device
  PinnedBuffer chosen_on_host_;
  PinnedBuffer staged_choices_;         // choices of every row or token
  Tensor choices_;                      // (.., sizeof(TokenChoice)), the same on the device
  LogitsBlock last_;                    // logits of the newest token of every row
  std::unique_ptr<LogitsBlock> every_;  // logits of every token of a pass of verify()
  std::optional<LogitsBlock> all_;      // logits that no one reads, of a rank that follows
  LogitsBlock* newest_ = nullptr;       // the block of the newest pass
  Dim results_ = 0;                     // results of the newest pass, fillers included
  Dim results_of_row_ = 1;              // and of a row
};

}  // namespace hyperslab::generate
