// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hyperslab/comm/world.hpp"

namespace hyperslab::generate {

/// New tokens of one text.
struct RowRead {
  std::span<const std::int32_t> tokens;
  std::int64_t past = 0;                ///< tokens of the text in the cache
  std::span<const std::int32_t> pages;  ///< pages of the cache that the text owns
};

/// The next action of the ranks of a tensor group.
enum class PassOrder : std::int32_t {
  read,      ///< a pass with the logits of the last token of each row
  read_all,  ///< a pass with the logits of every token
  verify,    ///< a pass that chooses after every token
  rest,      ///< nothing, for a moment
  load,      ///< values of another checkpoint, which the ranks agree on
  end,       ///< nothing more
};

/// Messages by which the first rank of a tensor group, which alone knows the texts, has the others
/// take part in its passes: one before each.
class PassOrders {
 public:
  /// `ranks`: of the group; null, or of one rank: nothing is sent. `model`: number of the model
  /// that passes are of, where ranks share several.
  explicit PassOrders(comm::World* ranks, int model = 0) : ranks_(ranks), model_(model) {}

  [[nodiscard]] bool is_alone() const { return ranks_ == nullptr || ranks_->size() == 1; }
  [[nodiscard]] bool leads() const { return is_alone() || ranks_->rank() == 0; }

  /// The leader: every row has as many tokens.
  void send(PassOrder order, std::span<const RowRead> rows = {});
  /// Another rank: waits for the next order; rows() are its rows until the next call, and model()
  /// is the number of the sender's model.
  [[nodiscard]] PassOrder receive();
  [[nodiscard]] int model() const { return model_; }
  [[nodiscard]] std::span<const RowRead> rows() const { return rows_; }

 private:
  comm::World* ranks_;
  int model_;
  std::vector<std::int32_t> words_;
  std::vector<RowRead> rows_;
};

}  // namespace hyperslab::generate
