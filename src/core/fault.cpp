// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/fault.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <list>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::fault {
namespace {

constexpr std::int64_t kAny = -1;
constexpr double kMostDelaySeconds = 1e6;

/// One entry of HYPERSLAB_FAULT.
struct Fault {
  std::string text;
  std::string point;  // "*": every call
  std::string path;   // empty: any
  std::int64_t nth = kAny;
  std::int64_t rank = kAny;
  std::int64_t step = kAny;
  Action action = Action::kill;
  double seconds = 0;  // length of a delay
  std::atomic<std::int64_t> matches{0};
};

std::list<Fault> faults;
std::atomic<std::int64_t> own_rank{0};
std::atomic<std::int64_t> own_step{0};
std::atomic<const Injection::Answer*> injection{nullptr};

[[noreturn]] void refuse(const std::string& entry, const std::string& problem) {
  throw Error(ExitCode::usage,
              fmt::format("HYPERSLAB_FAULT: '{}': {}; expected POINT[@PATH][#N]:RANK:STEP:ACTION "
                          "(hyperslab --faults lists points and actions)",
                          entry, problem))
      .on_all_ranks();
}

/// A whole number from `least` on, all of `text`.
std::optional<std::int64_t> number(std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) return {};
  return value;
}

std::int64_t number_or_any(std::string_view text, std::string_view what, const std::string& entry) {
  if (text == "*") return kAny;
  const auto found = number(text, 0);
  if (!found) refuse(entry, fmt::format("the {} is '{}', expected a number or *", what, text));
  return *found;
}

/// The words between the signs `sign`.
std::vector<std::string> split(const std::string& text, char sign) {
  std::vector<std::string> parts(1);
  for (const char each : text) {
    if (each == sign) {
      parts.emplace_back();
    } else {
      parts.back() += each;
    }
  }
  return parts;
}

/// Takes the text after `sign` off the end of `text`.
std::optional<std::string> take_after(std::string& text, char sign) {
  const auto found = text.rfind(sign);
  if (found == std::string::npos) return {};
  std::string rest = text.substr(found + 1);
  text.resize(found);
  return rest;
}

void read_place(std::string place, Fault& fault) {
  if (const auto nth = take_after(place, '#')) {
    const auto found = number(*nth, 1);
    if (!found) refuse(fault.text, fmt::format("'{}' after # is no number from 1 on", *nth));
    fault.nth = *found;
  }
  if (const auto path = take_after(place, '@')) fault.path = *path;
  const bool known =
      place == "*" || std::ranges::find(points(), place, &Point::name) != points().end();
  if (!known) refuse(fault.text, fmt::format("there is no point '{}'", place));
  fault.point = place;
}

void read_action(const std::string& word, Fault& fault) {
  const auto is_it = [&](const ActionText& each) {
    return each.action == Action::delay ? word.starts_with(each.name) : word == each.name;
  };
  const auto found = std::ranges::find_if(actions(), is_it);
  if (found == actions().end()) refuse(fault.text, fmt::format("there is no action '{}'", word));
  fault.action = found->action;
  const auto fits_here = [&](const Point& point) {
    const bool meant = fault.point == "*" ? point.is_call() : point.name == fault.point;
    return meant && fits(fault.action, point);
  };
  if (std::ranges::none_of(points(), fits_here)) {
    refuse(fault.text, fmt::format("the point {} has no action {}", fault.point, word));
  }
  if (fault.action != Action::delay) return;
  const char* begin = word.c_str() + found->name.size();
  char* end = nullptr;
  fault.seconds = std::strtod(begin, &end);
  const bool whole = *begin != '\0' && *end == '\0';
  if (!whole || !(fault.seconds >= 0 && fault.seconds <= kMostDelaySeconds)) {
    refuse(fault.text, fmt::format("'{}' is no number of seconds", begin));
  }
}

void read(const std::string& entry, Fault& fault) {
  fault.text = entry;
  const std::vector<std::string> words = split(entry, ':');
  if (words.size() != 4)
    refuse(entry, fmt::format("it has {} part(s) in place of 4", words.size()));
  read_place(words[0], fault);
  fault.rank = number_or_any(words[1], "rank", entry);
  fault.step = number_or_any(words[2], "step", entry);
  read_action(words[3], fault);
}

/// In one write and without a lock, as the process may end right after.
void report(const Fault& fault, std::string_view point, const std::string& subject,
            std::int64_t match) {
  const std::string line = fmt::format(
      "fault on purpose ({}): rank {} step {} {}{}{}, occurrence {}\n", fault.text, own_rank.load(),
      own_step.load(), point, subject.empty() ? "" : " of ", subject, match);
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

/// The fault that strikes here and now, which it has reported; null if none does.
Fault* strike(std::string_view name, const std::string& subject) {
  const auto point = std::ranges::find(points(), name, &Point::name);
  require(point != points().end(), "a fault point that is not in the table");
  Fault* found = nullptr;
  for (Fault& fault : faults) {
    const bool here = fault.point == "*" ? point->is_call() : fault.point == name;
    if (!here || !fits(fault.action, *point)) continue;
    if (fault.rank != kAny && fault.rank != own_rank.load()) continue;
    if (fault.step != kAny && fault.step != own_step.load()) continue;
    if (subject.find(fault.path) == std::string::npos) continue;
    const std::int64_t match = ++fault.matches;
    if (found != nullptr || (fault.nth != kAny && fault.nth != match)) continue;
    found = &fault;
    if (match == 1 || match == fault.nth) report(fault, name, subject, match);
  }
  return found;
}

/// Ends or holds this process; other actions are the caller's.
void act(const Fault& fault) {
  if (fault.action == Action::kill) ::kill(::getpid(), SIGKILL);
  if (fault.action == Action::stop) ::kill(::getpid(), SIGSTOP);
  if (fault.action == Action::delay) {
    std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
  }
}

/// errno of a fault; 0: none.
int error_of(const Fault& fault) {
  if (fault.action == Action::error) return EIO;
  return fault.action == Action::no_space ? ENOSPC : 0;
}

/// Acts at a point that is no call, and returns the fault there.
const Fault* reach_point(const char* point) {
  const Fault* fault = strike(point, "");
  if (fault == nullptr) return nullptr;
  act(*fault);
  if (const int error = error_of(*fault)) {
    throw Error(ExitCode::storage, fmt::format("fault on purpose at {}: {}", point,
                                               std::generic_category().message(error)));
  }
  return fault;
}

}  // namespace

void set(const std::string& value) {
  std::list<Fault> read_faults;
  if (!value.empty()) {
    for (const std::string& entry : split(value, ',')) read(entry, read_faults.emplace_back());
  }
  detail::sources += static_cast<int>(!read_faults.empty()) - static_cast<int>(!faults.empty());
  faults.swap(read_faults);
}

std::string warning() {
  if (faults.empty()) return "";
  std::string text = "HYPERSLAB_FAULT is set, so this run fails on purpose:";
  for (const Fault& fault : faults) text += ' ' + fault.text;
  return text;
}

void set_rank(int rank) { own_rank = rank; }
void set_step(std::int64_t step) { own_step.store(step, std::memory_order_relaxed); }

int detail::ask(const char* point, const std::string& subject) {
  const Injection::Answer* answer = injection.load(std::memory_order_acquire);
  const int answered = answer == nullptr ? 0 : (*answer)(point, subject);
  if (answered != 0 || faults.empty()) return answered;
  const Fault* fault = strike(point, subject);
  if (fault == nullptr) return 0;
  act(*fault);
  return fault->action == Action::short_write ? kShortWrite : error_of(*fault);
}

void detail::reach(const char* point) {
  if (!faults.empty()) (void)reach_point(point);
}

bool detail::corrupts(const char* point) {
  const Fault* fault = faults.empty() ? nullptr : reach_point(point);
  return fault != nullptr && (fault->action == Action::nan || fault->action == Action::flip);
}

Injection::Injection(Answer answer) : answer_(std::move(answer)) {
  const Answer* none = nullptr;
  require(injection.compare_exchange_strong(none, &answer_), "two fault injections at once");
  ++detail::sources;
}

Injection::~Injection() {
  injection.store(nullptr);
  --detail::sources;
}

}  // namespace hyperslab::fault
