// SPDX-License-Identifier: Apache-2.0
#include "scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "hyperslab/core/error.hpp"
#include "page_pool.hpp"

namespace hyperslab::generate {
namespace {

TEST(PagePool, GivesEveryPageOnceAndTakesItBack) {
  PagePool pool(5);
  std::vector<std::int32_t> a;
  std::vector<std::int32_t> b;
  EXPECT_TRUE(pool.take(2, a));
  EXPECT_TRUE(pool.take(2, b));
  EXPECT_FALSE(pool.take(4, a)) << "one is free, two are missing";
  EXPECT_EQ(a.size(), 2U) << "nothing was taken";
  EXPECT_TRUE(pool.take(1, a)) << "it has them already";
  EXPECT_TRUE(pool.take(3, a));
  std::set<std::int32_t> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all, (std::set<std::int32_t>{0, 1, 2, 3, 4}));

  pool.give_back(a);
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(pool.free(), 3);
  pool.give_back(b);
  std::vector<std::int32_t> foreign = {1};
  EXPECT_THROW(pool.give_back(foreign), Error);
}

SchedulerLimits limits(std::int64_t rows, std::int64_t pages, std::int64_t pass_tokens) {
  return {
      .rows = rows, .pages = pages, .page_tokens = 4, .context = 16, .pass_tokens = pass_tokens};
}

std::vector<std::size_t> ids_of(const SchedulerPass& pass) {
  std::vector<std::size_t> ids;
  for (const ScheduledText* text : pass.texts) ids.push_back(text->id);
  return ids;
}

using Ids = std::vector<std::size_t>;

TEST(Scheduler, ReadsPromptsOfOneLengthTogetherAndThenTokensOfAll) {
  Scheduler scheduler(limits(4, 16, 16));
  for (const auto& [id, length] : std::map<std::size_t, std::int64_t>{{0, 3}, {1, 5}, {2, 3}}) {
    scheduler.add(id, length);
  }
  auto pass = scheduler.next();
  EXPECT_EQ(ids_of(*pass), (Ids{0, 2}));
  EXPECT_EQ(pass->count, 3);
  EXPECT_TRUE(pass->is_whole && pass->texts.front()->is_new);
  scheduler.grow(0);
  scheduler.grow(2);
  pass = scheduler.next();
  EXPECT_EQ(ids_of(*pass), (Ids{1}));
  scheduler.grow(1);
  pass = scheduler.next();
  EXPECT_EQ(ids_of(*pass), (Ids{0, 1, 2}));
  EXPECT_EQ(pass->count, 1);
  EXPECT_FALSE(pass->texts.front()->is_new);
}

TEST(Scheduler, TextsThatBeginBeforeAPassAreReadInIt) {
  Scheduler scheduler(limits(3, 16, 16));
  EXPECT_TRUE(scheduler.has_free_row());
  scheduler.add(0, 3);
  EXPECT_TRUE(scheduler.has_free_row()) << "one text waits for three rows";
  scheduler.add(1, 3);
  EXPECT_EQ(ids_of(*scheduler.next()), (Ids{0, 1}));
  scheduler.grow(0);
  scheduler.grow(1);
  EXPECT_TRUE(scheduler.has_free_row());
  scheduler.add(2, 3);
  EXPECT_FALSE(scheduler.has_free_row()) << "two run and one waits";
  scheduler.end(0);
  EXPECT_TRUE(scheduler.has_free_row());
}

TEST(Scheduler, APromptGoesBetweenTokensInPartsAndARowIsUsedAgain) {
  Scheduler scheduler(limits(2, 16, 6));
  scheduler.add(0, 2);
  scheduler.add(1, 14);
  scheduler.add(2, 1);
  EXPECT_EQ(ids_of(*scheduler.next()), (Ids{0}));
  scheduler.grow(0);
  // Six tokens of the long prompt at a time, and a token of the other text after each part.
  for (const auto& [count, is_whole] :
       std::vector<std::pair<std::int64_t, bool>>{{6, false}, {6, false}}) {
    auto pass = scheduler.next();
    EXPECT_EQ(ids_of(*pass), (Ids{0})) << "the budget of the round is not whole any more";
    scheduler.grow(0);
    pass = scheduler.next();
    EXPECT_EQ(ids_of(*pass), (Ids{1}));
    EXPECT_EQ(pass->count, count);
    EXPECT_EQ(pass->is_whole, is_whole);
  }
  EXPECT_EQ(scheduler.waiting(), 1U);
  EXPECT_EQ(ids_of(*scheduler.next()), (Ids{0}));
  scheduler.end(0);
  auto pass = scheduler.next();
  EXPECT_EQ(ids_of(*pass), (Ids{1}));
  EXPECT_EQ(pass->count, 2);
  EXPECT_TRUE(pass->is_whole);
  scheduler.grow(1);
  EXPECT_EQ(ids_of(*scheduler.next()), (Ids{2})) << "it has the row of the first text";
}

TEST(Scheduler, AFullContextGoesOnFromItsNewerHalf) {
  Scheduler scheduler(limits(1, 4, 16));
  scheduler.add(7, 20);
  auto pass = scheduler.next();
  EXPECT_EQ(pass->count, 16) << "of a long prompt the end counts";
  EXPECT_EQ(pass->texts.front()->begin, 4);
  scheduler.grow(7);
  pass = scheduler.next();
  EXPECT_EQ(pass->count, 8);
  EXPECT_EQ(pass->texts.front()->begin, 13);
  EXPECT_FALSE(pass->texts.front()->is_new);
}

TEST(Scheduler, TheNewestTextWaitsIfThereIsNoPage) {
  Scheduler scheduler(limits(2, 4, 16));
  scheduler.add(0, 4);
  scheduler.add(1, 4);
  EXPECT_EQ(ids_of(*scheduler.next()), (Ids{0, 1}));
  scheduler.grow(0);
  scheduler.grow(1);
  for (int token = 0; token < 4; ++token) {
    EXPECT_EQ(ids_of(*scheduler.next()), (Ids{0, 1}));
    scheduler.grow(0);
    scheduler.grow(1);
  }
  for (int token = 0; token < 8; ++token) {
    EXPECT_EQ(ids_of(*scheduler.next()), (Ids{0})) << token;
    scheduler.grow(0);
  }
  EXPECT_EQ(scheduler.preempted(), 1);
  EXPECT_EQ(scheduler.waiting(), 1U);
  scheduler.end(0);
  const auto pass = scheduler.next();
  EXPECT_EQ(ids_of(*pass), (Ids{1}));
  EXPECT_EQ(pass->count, 9) << "its four tokens, and five that were chosen";
  EXPECT_TRUE(pass->is_whole);
}

TEST(Scheduler, GuessesTakeFreePagesAndGiveThemBack) {
  Scheduler scheduler(limits(2, 5, 16));
  scheduler.add(0, 7);
  scheduler.add(1, 3);
  (void)scheduler.next();
  scheduler.grow(0);
  (void)scheduler.next();
  scheduler.grow(1);
  auto pass = scheduler.next();
  EXPECT_TRUE(pass->goes_on);
  EXPECT_EQ(scheduler.pool().free(), 2);
  EXPECT_EQ(scheduler.reserve(0, 3), 3) << "tokens 8 to 10, of which 8 begins a page";
  EXPECT_EQ(scheduler.pool().free(), 1);
  EXPECT_EQ(scheduler.reserve(1, 9), 4) << "one page is left";
  EXPECT_EQ(scheduler.pool().free(), 0);
  scheduler.grow(0, 1);
  EXPECT_EQ(scheduler.pool().free(), 1) << "no guess held";
  scheduler.grow(1, 3);
  EXPECT_EQ(scheduler.pool().free(), 1) << "two did, which lie in the new page";
  pass = scheduler.next();
  EXPECT_EQ(ids_of(*pass), (Ids{0, 1}));
  EXPECT_EQ(pass->texts[1]->length, 7);
  EXPECT_EQ(pass->texts[1]->cached, 7);
  EXPECT_EQ(scheduler.reserve(0, 100), 3) << "as many as its page has room for";
}

TEST(Scheduler, GuessesEndWithTheContext) {
  Scheduler scheduler(limits(1, 4, 16));
  scheduler.add(0, 13);
  EXPECT_FALSE(scheduler.next()->goes_on);
  scheduler.grow(0);
  (void)scheduler.next();
  EXPECT_EQ(scheduler.reserve(0, 8), 2);
  scheduler.grow(0, 3);
  const auto pass = scheduler.next();
  EXPECT_EQ(pass->count, 8) << "the context is full: its newer half is read";
  EXPECT_EQ(pass->texts.front()->length, 17);
}

TEST(Scheduler, SizesThatCannotBeAreRefused) {
  EXPECT_THROW(Scheduler(limits(1, 3, 16)), Error) << "a context has four pages";
  EXPECT_THROW(Scheduler(limits(8, 16, 7)), Error) << "a token of every row is more than a pass";
}

/// What each text should hold, beside what the scheduler says.
class Watch {
 public:
  Watch(Scheduler& scheduler, const SchedulerLimits& limits, std::uint64_t seed)
      : scheduler_(scheduler), limits_(limits), random_(seed) {}

  std::int64_t draw(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  void add() {
    scheduler_.add(added_, lengths_[added_] = draw(1, 40));
    left_[added_] = draw(1, 50);
    ++added_;
  }
  /// A pass: no page has two owners, every text has pages for its tokens, and they are in order.
  void expect_sound(const SchedulerPass& pass) {
    std::set<std::int32_t> pages;
    std::size_t owned = 0;
    for (const ScheduledText* text : pass.texts) {
      pages.insert(text->pages.begin(), text->pages.end());
      owned += text->pages.size();
      EXPECT_EQ(text->length, lengths_.at(text->id));
      EXPECT_LE(text->cached, limits_.context);
      EXPECT_GE(text->cached, pass.count);
      EXPECT_LE(text->begin + text->cached, text->length);
      EXPECT_EQ(text->unread() == 0, pass.is_whole);
      EXPECT_GE(std::ssize(text->pages) * limits_.page_tokens, text->cached);
    }
    EXPECT_EQ(pages.size(), owned) << "a page has two owners";
    EXPECT_LE(std::ssize(pages) + scheduler_.pool().free(), limits_.pages);
    EXPECT_LE(std::ssize(pass.texts) * pass.count, limits_.pass_tokens);
    EXPECT_LE(std::ssize(pass.texts), limits_.rows);
  }
  void go_on(const SchedulerPass& pass) {
    if (!pass.is_whole) return;
    const Ids ids = ids_of(pass);
    for (const std::size_t id : ids) {
      std::int64_t tokens = 1;
      if (pass.goes_on) tokens += draw(0, scheduler_.reserve(id, draw(-1, 9)));
      if ((left_.at(id) -= tokens) > 0) {
        lengths_.at(id) += tokens;
        scheduler_.grow(id, tokens);
      } else {
        scheduler_.end(id);
        lengths_.erase(id);
        left_.erase(id);
      }
    }
  }
  /// Somebody leaves, running or waiting.
  void drop_one() {
    if (lengths_.empty()) return;
    const std::size_t id = lengths_.begin()->first;
    scheduler_.end(id);
    lengths_.erase(id);
    left_.erase(id);
  }
  [[nodiscard]] std::size_t texts() const { return lengths_.size(); }

 private:
  Scheduler& scheduler_;
  const SchedulerLimits& limits_;
  std::mt19937_64 random_;
  std::map<std::size_t, std::int64_t> lengths_;
  std::map<std::size_t, std::int64_t> left_;
  std::size_t added_ = 0;
};

TEST(Scheduler, NoPageIsLostOrSharedWhateverComes) {
  std::int64_t preempted = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto rows = static_cast<std::int64_t>(1 + random() % 6);
    const auto pages = static_cast<std::int64_t>(4 + random() % 12);
    const SchedulerLimits size =
        limits(rows, pages, rows + static_cast<std::int64_t>(random() % 20));
    Scheduler scheduler(size);
    Watch watch(scheduler, size, seed);
    int arrivals = 25;
    for (int step = 0; step < 20000 && (arrivals > 0 || watch.texts() > 0); ++step) {
      if (arrivals > 0 && watch.draw(0, 3) == 0) {
        watch.add();
        --arrivals;
      }
      if (watch.draw(0, 60) == 0) watch.drop_one();
      const auto pass = scheduler.next();
      ASSERT_EQ(pass.has_value(), watch.texts() > 0);
      if (!pass) continue;
      ASSERT_FALSE(pass->texts.empty());
      watch.expect_sound(*pass);
      watch.go_on(*pass);
    }
    EXPECT_EQ(watch.texts(), 0U) << "seed " << seed << ": texts never end";
    EXPECT_TRUE(scheduler.is_idle());
    EXPECT_EQ(scheduler.pool().free(), size.pages) << "seed " << seed;
    preempted += scheduler.preempted();
  }
  EXPECT_GT(preempted, 100) << "pages ran out often enough to see it";
}

}  // namespace
}  // namespace hyperslab::generate
