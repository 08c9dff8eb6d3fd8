// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <vector>

#include "drafts.hpp"
#include "page_pool.hpp"
#include "text_model.hpp"

namespace hyperslab::generate {

/// A smaller model of the same vocabulary guesses tokens one by one, for all texts together, on a
/// cache of its own. It reads what was said since its last guesses first.
class DraftModel final : public Drafter {
 public:
  /// `model` must outlive this, and no one else may use its pages.
  explicit DraftModel(TextModel& model);

  void draft(std::span<Draft> drafts) override;
  [[nodiscard]] bool draws() const override { return true; }
  void end(std::size_t id) override;

  /// Pages of the cache that no text holds.
  [[nodiscard]] std::int64_t free_pages() const { return pool_.free(); }

 private:
  /// The tokens of a text that are in the cache.
  struct Cached {
    std::int64_t begin = 0;   ///< the first one's place in the text
    std::int64_t tokens = 0;  ///< from there on
    std::vector<std::int32_t> pages{};
    std::int64_t text = 0;                ///< tokens of the text when its newest guesses were made
    std::vector<std::int32_t> guessed{};  ///< those of them that are in the cache
  };
  [[nodiscard]] bool prepare(Draft& draft, std::span<const Draft> all);
  static void rewind(std::span<const std::int32_t> text, Cached& cached);
  [[nodiscard]] bool find_pages(std::int64_t count, std::vector<std::int32_t>& to,
                                std::span<const Draft> all);
  [[nodiscard]] std::int64_t first_tokens(std::span<Draft* const> texts) const;
  void catch_up(const Draft& draft, std::int64_t unread);
  void guess_next(std::span<Draft* const> texts, std::int64_t tokens);
  [[nodiscard]] RowRead row_of(const Draft& draft, std::int64_t tokens) const;
  void guess(Draft& draft, std::size_t row, TextModel::Wanted wanted) const;

  TextModel& model_;
  PagePool pool_;
  std::map<std::size_t, Cached> cached_;  ///< by the text's id
};

}  // namespace hyperslab::generate
