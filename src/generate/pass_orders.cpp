// SPDX-License-Identifier: Apache-2.0
#include "pass_orders.hpp"

#include <cstring>
#include <string>

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {

/// The words: order, model, rows, tokens of each; then of each row its tokens, its past tokens, how
/// many pages it has, and these.
void PassOrders::send(PassOrder order, std::span<const RowRead> rows) {
  if (is_alone()) return;
  require(leads(), "pass orders: only the first rank of the group gives them");
  const std::size_t tokens = rows.empty() ? 0 : rows.front().tokens.size();
  words_.assign({static_cast<std::int32_t>(order), model_, static_cast<std::int32_t>(rows.size()),
                 static_cast<std::int32_t>(tokens)});
  for (const RowRead& row : rows) {
    require(row.tokens.size() == tokens, "pass orders: rows of unequal lengths");
    words_.insert(words_.end(), row.tokens.begin(), row.tokens.end());
    words_.push_back(static_cast<std::int32_t>(row.past));
    words_.push_back(static_cast<std::int32_t>(row.pages.size()));
    words_.insert(words_.end(), row.pages.begin(), row.pages.end());
  }
  (void)ranks_->broadcast(std::string(reinterpret_cast<const char*>(words_.data()),
                                      words_.size() * sizeof(std::int32_t)));
}

PassOrder PassOrders::receive() {
  const std::string bytes = ranks_->broadcast({});
  words_.resize(bytes.size() / sizeof(std::int32_t));
  std::memcpy(words_.data(), bytes.data(), words_.size() * sizeof(std::int32_t));
  rows_.clear();
  std::span<const std::int32_t> rest = words_;
  const auto take = [&](std::size_t count) {
    require(count <= rest.size(), "pass orders: a message that ends early");
    const auto taken = rest.first(count);
    rest = rest.subspan(count);
    return taken;
  };
  const auto head = take(4);
  model_ = head[1];
  for (std::int32_t row = 0; row < head[2]; ++row) {
    const auto tokens = take(static_cast<std::size_t>(head[3]));
    const auto numbers = take(2);
    rows_.push_back({tokens, numbers[0], take(static_cast<std::size_t>(numbers[1]))});
  }
  require(rest.empty(), "pass orders: a message that is too long");
  return static_cast<PassOrder>(head[0]);
}

}  // namespace hyperslab::generate
