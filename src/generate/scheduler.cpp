// SPDX-License-Identifier: Apache-2.0
#include "scheduler.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {
namespace {

/// Reads its tokens one by one as they are chosen; others read several first.
bool goes_on(const ScheduledText& text) { return !text.is_new && text.unread() == 1; }

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits), pool_(limits.pages), budget_(limits.pass_tokens) {
  require(limits.rows > 0 && limits.pass_tokens >= limits.rows && limits.context > 0,
          "scheduler: expected room for a token of every row");
  require(pages_for(limits.context) <= limits.pages,
          "scheduler: expected pages for one whole context");
}

std::int64_t Scheduler::pages_for(std::int64_t tokens) const {
  return (tokens + limits_.page_tokens - 1) / limits_.page_tokens;
}

void Scheduler::add(std::size_t id, std::int64_t length) {
  require(length > 0, "scheduler: a text without tokens");
  ScheduledText text = {.id = id, .length = length};
  text.begin = std::max<std::int64_t>(0, length - limits_.context);
  waiting_.push_back(std::move(text));
}

/// Beside the pages that a text reads first, those that run may each need a page soon.
void Scheduler::admit() {
  while (!waiting_.empty() && std::ssize(running_) < limits_.rows) {
    ScheduledText& text = waiting_.front();
    const std::int64_t needed = pages_for(text.unread());
    if (needed + std::ssize(running_) > pool_.free() && !running_.empty()) return;
    require(pool_.take(needed, text.pages), "scheduler: pages are missing with no text running");
    running_.push_back(std::move(text));
    waiting_.pop_front();
  }
}

std::optional<SchedulerPass> Scheduler::next() {
  for (ScheduledText& text : running_) turn_over(text);
  admit();
  if (running_.empty()) return std::nullopt;
  if (std::ranges::none_of(running_, goes_on)) budget_ = limits_.pass_tokens;
  if (auto pass = prompts()) return pass;
  budget_ = limits_.pass_tokens;
  if (auto pass = tokens()) return pass;
  return next();  // all of them gave up their pages to older ones, which read prompts
}

void Scheduler::turn_over(ScheduledText& text) {
  if (text.cached < limits_.context || text.unread() == 0) return;
  text.begin = text.length - std::max<std::int64_t>(limits_.context / 2, 1);
  text.cached = 0;
  pool_.give_back(text.pages);
  require(pool_.take(pages_for(text.unread()), text.pages), "scheduler: half a context has room");
}

/// Prompts of one length together; one that is longer than a pass alone, in parts.
std::optional<SchedulerPass> Scheduler::prompts() {
  const auto first = std::ranges::find_if_not(running_, goes_on);
  if (first == running_.end()) return std::nullopt;
  const std::int64_t unread = first->unread();
  if (unread > budget_ && budget_ < limits_.pass_tokens) return std::nullopt;
  SchedulerPass pass;
  pass.count = std::min(unread, budget_);
  pass.is_whole = pass.count == unread;
  for (ScheduledText& text : running_) {
    if (goes_on(text) || text.unread() != unread || budget_ < pass.count) continue;
    text.cached += pass.count;
    budget_ -= pass.count;
    pass.texts.push_back(&text);
    if (!pass.is_whole) break;
  }
  return pass;
}

std::optional<SchedulerPass> Scheduler::tokens() {
  SchedulerPass pass = {.texts = {}, .count = 1, .is_whole = true, .goes_on = true};
  for (auto text = running_.begin(); text != running_.end();) {
    if (goes_on(*text) && !find_room(*text)) break;  // it was the newest, and has gone
    ++text;
  }
  for (ScheduledText& text : running_) {
    if (!goes_on(text)) continue;
    ++text.cached;
    pass.texts.push_back(&text);
  }
  if (pass.texts.empty()) return std::nullopt;
  return pass;
}

/// A page for the next token, of the newest texts if need be; false: the text was the newest.
bool Scheduler::find_room(ScheduledText& text) {
  while (!pool_.take(pages_for(text.cached + 1), text.pages)) {
    const bool is_newest = &text == &running_.back();
    preempt_newest();
    if (is_newest) return false;
  }
  return true;
}

void Scheduler::preempt_newest() {
  ScheduledText& newest = running_.back();
  pool_.give_back(newest.pages);
  newest.cached = 0;
  ++preempted_;
  waiting_.push_front(std::move(newest));
  running_.pop_back();
}

ScheduledText& Scheduler::just_read(std::size_t id) {
  const auto text = std::ranges::find(running_, id, &ScheduledText::id);
  require(text != running_.end() && text->unread() == 0, "scheduler: a token for no text");
  return *text;
}

std::int64_t Scheduler::reserve(std::size_t id, std::int64_t most) {
  ScheduledText& text = just_read(id);
  const std::int64_t wanted = std::clamp<std::int64_t>(most, 0, limits_.context - text.cached);
  const std::int64_t missing = pages_for(text.cached + wanted) - std::ssize(text.pages);
  const std::int64_t taken = std::min(missing, pool_.free());
  require(pool_.take(std::ssize(text.pages) + taken, text.pages), "scheduler: pages are missing");
  return std::min(wanted, std::ssize(text.pages) * limits_.page_tokens - text.cached);
}

void Scheduler::grow(std::size_t id, std::int64_t tokens) {
  ScheduledText& text = just_read(id);
  text.length += tokens;
  text.cached += tokens - 1;
  text.is_new = false;
  pool_.trim(pages_for(text.cached), text.pages);
}

void Scheduler::end(std::size_t id) {
  const auto text = std::ranges::find(running_, id, &ScheduledText::id);
  if (text != running_.end()) {
    pool_.give_back(text->pages);
    running_.erase(text);
    return;
  }
  std::erase_if(waiting_, [=](const ScheduledText& waits) { return waits.id == id; });
}

}  // namespace hyperslab::generate
