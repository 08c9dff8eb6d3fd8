// SPDX-License-Identifier: Apache-2.0
#include "prompt_scores.hpp"

#include <algorithm>
#include <numeric>

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {
namespace {

/// Prompts that are read together, in parts of some tokens each.
class Group {
 public:
  Group(TextModel& model, PagePool& pool, const Prompts& prompts,
        std::span<const std::size_t> numbers, std::size_t longest)
      : model_(model), pool_(pool), prompts_(prompts), numbers_(numbers), pages_(numbers.size()) {
    const Dim page = model.cache().page_tokens();
    for (auto& pages : pages_) {
      require(pool.take((static_cast<Dim>(longest) + page - 1) / page, pages),
              "prompt_logits: pages are missing");
    }
  }
  ~Group() {
    for (auto& pages : pages_) pool_.give_back(pages);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Group(Group&&) = delete;
  Group& operator=(Group&&) = delete;

  /// Tokens [first, first + count) of all prompts. Tokens after a prompt's end change nothing
  /// before it.
  void score(std::size_t first, std::size_t count, LogitsBlock& block,
             const Generator::PromptRow& row) {
    tokens_.assign(numbers_.size() * count, 0);
    std::vector<RowRead> rows;
    for (std::size_t n = 0; n < numbers_.size(); ++n) {
      const auto& prompt = prompts_[numbers_[n]];
      const std::size_t last = std::min(first + count, prompt.size());
      for (std::size_t i = first; i < last; ++i) tokens_[n * count + i - first] = prompt[i];
      rows.push_back({std::span(tokens_).subspan(n * count, count),
                      static_cast<std::int64_t>(first), pages_[n]});
    }
    model_.read_all(rows, block);
    for (std::size_t n = 0; n < numbers_.size(); ++n) {
      const std::size_t last = std::min(first + count, prompts_[numbers_[n]].size());
      for (std::size_t i = first; i < last; ++i) {
        row(numbers_[n], i, block.row(n * count + i - first, model_.vocabulary()));
      }
    }
  }

 private:
  TextModel& model_;
  PagePool& pool_;
  const Prompts& prompts_;
  std::span<const std::size_t> numbers_;
  std::vector<std::vector<std::int32_t>> pages_;
  std::vector<std::int32_t> tokens_{};
};

/// Tokens of every row of which all logits are kept at a time.
std::size_t tokens_at_once(const TextModel& model, std::size_t rows, std::size_t longest) {
  constexpr std::size_t kBlockBytes = std::size_t{64} << 20;
  const std::size_t kept = kBlockBytes / (rows * model.logits_row_bytes());
  const std::size_t passed = static_cast<std::size_t>(model.pass_tokens()) / rows;
  return std::clamp<std::size_t>(std::min(kept, passed), 1, longest);
}

}  // namespace

void score_prompts(TextModel& model, PagePool& pool, const Prompts& prompts,
                   const Generator::PromptRow& row) {
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return prompts[i].size(); });
  const std::span<const std::size_t> all(order);
  const Dim page = model.cache().page_tokens();
  for (std::size_t i = 0; i < all.size();) {
    std::size_t count = 1;  // prompts that the pages hold together
    while (i + count < all.size() && static_cast<Dim>(count) < model.rows()) {
      const auto longest = static_cast<Dim>(prompts[all[i + count]].size());
      const Dim pages = (longest + page - 1) / page * static_cast<Dim>(count + 1);
      if (pages > pool.free()) break;
      ++count;
    }
    const std::size_t longest = prompts[all[i + count - 1]].size();
    Group group(model, pool, prompts, all.subspan(i, count), longest);
    const std::size_t most = tokens_at_once(model, count, longest);
    LogitsBlock block = model.make_block(static_cast<Dim>(count * most));
    for (std::size_t first = 0; first < longest; first += most) {
      group.score(first, std::min(most, longest - first), block, row);
    }
    i += count;
  }
}

}  // namespace hyperslab::generate
