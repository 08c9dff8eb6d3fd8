// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <vector>

#include "page_pool.hpp"

namespace hyperslab::generate {

struct SchedulerLimits {
  std::int64_t rows = 1;         ///< texts that run at once
  std::int64_t pages = 1;        ///< pages of the cache; a whole context fits into them
  std::int64_t page_tokens = 1;  ///< tokens of a page
  std::int64_t context = 1;      ///< tokens that the model sees at most
  std::int64_t pass_tokens =
      1;  ///< tokens of one pass at most, and of prompts between two tokens of texts
};

/// A text that is continued: which of its tokens are in the cache, and where.
struct ScheduledText {
  std::size_t id = 0;
  std::int64_t length = 0;  ///< tokens
  std::int64_t begin = 0;   ///< the first one in the cache, or that will be
  std::int64_t cached = 0;  ///< tokens in the cache, from `begin` on
  bool is_new = true;       ///< none of its tokens was chosen here
  std::vector<std::int32_t> pages{};

  /// Tokens that the model is to read before it can say the next one.
  [[nodiscard]] std::int64_t unread() const { return length - begin - cached; }
};

/// The next pass of the model: it reads `count` tokens of each text, those after the cached ones.
struct SchedulerPass {
  std::vector<const ScheduledText*> texts;
  std::int64_t count = 0;
  bool is_whole = true;  ///< nothing is unread afterwards: a token can be chosen for each text
  bool goes_on = false;  ///< it reads the token that was chosen last, of all texts that have one
};

/// Decides which texts run together (continuous batching, Yu et al. 2022, section 3.1): a text that
/// ends leaves its row to the next one that waits, and prompts are read between the tokens of the
/// texts that run, in passes of bounded size. Texts get pages as they grow (Kwon et al. 2023). If
/// none is free, the newest text gives its pages back and waits, to be read again; the oldest one
/// always goes on. It knows no tokens and no model.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  /// A text of `length` tokens, 1 or more, after those that wait.
  void add(std::size_t id, std::int64_t length);
  /// The next pass, as if it were done: the tokens that it reads count as cached. Its texts are
  /// valid until the next call of any function. Absent: there are no texts.
  [[nodiscard]] std::optional<SchedulerPass> next();
  /// A text of the newest pass, which goes_on, is to be read together with up to `most` guesses
  /// of the tokens that follow: takes free pages for them, and no other text's. The number of
  /// tokens that the context and the pages have room for.
  [[nodiscard]] std::int64_t reserve(std::size_t id, std::int64_t most);
  /// `tokens` were chosen for a text of the newest pass, which was whole. All but the last one were
  /// guessed and are in the cache; what else was reserved is free again.
  void grow(std::size_t id, std::int64_t tokens = 1);
  /// A text has ended, or is given up.
  void end(std::size_t id);

  [[nodiscard]] std::size_t running() const { return running_.size(); }
  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }
  [[nodiscard]] bool has_free_row() const {
    return std::ssize(running_) + std::ssize(waiting_) < limits_.rows;
  }
  [[nodiscard]] bool is_idle() const { return running_.empty() && waiting_.empty(); }
  /// Counts how often a text gave its pages back before it had ended.
  [[nodiscard]] std::int64_t preempted() const { return preempted_; }
  [[nodiscard]] PagePool& pool() { return pool_; }

 private:
  [[nodiscard]] std::int64_t pages_for(std::int64_t tokens) const;
  [[nodiscard]] ScheduledText& just_read(std::size_t id);
  void admit();
  /// Makes texts with a full cache read the newer half of it again.
  void turn_over(ScheduledText& text);
  [[nodiscard]] std::optional<SchedulerPass> prompts();
  [[nodiscard]] std::optional<SchedulerPass> tokens();
  [[nodiscard]] bool find_room(ScheduledText& text);
  void preempt_newest();

  SchedulerLimits limits_;
  PagePool pool_;
  std::deque<ScheduledText> waiting_;
  std::list<ScheduledText> running_;  ///< the oldest first
  std::int64_t budget_ = 0;           ///< tokens of prompts that may be read before texts go on
  std::int64_t preempted_ = 0;
};

}  // namespace hyperslab::generate
