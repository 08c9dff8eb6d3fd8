// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/agree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>

#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {
namespace {

/// The outcome of the work on one rank.
struct Outcome {
  int code = 0;         // an ExitCode
  std::string message;  // text of the error; empty: none
  std::string result;
};

/// "<code> <bytes of the message>\n<message><result>"
std::string text_of(const Outcome& outcome) {
  return fmt::format("{} {}\n{}{}", outcome.code, outcome.message.size(), outcome.message,
                     outcome.result);
}

Outcome outcome_in(const std::string& text) {
  const std::size_t space = text.find(' ');
  const std::size_t begin = text.find('\n') + 1;
  require(space < begin && begin > 0, "ranks do not agree on what they agree on");
  const std::size_t bytes = std::stoull(text.substr(space + 1));
  return {std::stoi(text), text.substr(begin, bytes), text.substr(begin + bytes)};
}

Outcome attempt(const std::function<std::string()>& work) {
  constexpr int kInternal = static_cast<int>(ExitCode::internal);
  try {
    return {0, "", work()};
  } catch (const Error& error) {
    std::string message = error.what();
    if (error.code() == ExitCode::internal) {  // its source is lost when it is thrown again
      message += fmt::format(" ({}:{})", error.where().file_name(), error.where().line());
    }
    return {static_cast<int>(error.code()), message, ""};
  } catch (const std::bad_alloc&) {
    return {static_cast<int>(ExitCode::device),
            "the host's memory is used up; start fewer ranks on it, or raise its limit (ulimit -v)",
            ""};
  } catch (const std::exception& error) {
    return {kInternal, error.what(), ""};
  }
}

/// "rank 1 on host n2: " before the message of that rank. Nothing for rank 0, unless other ranks on
/// other hosts have no such error.
std::string origin(int rank, bool everywhere, const std::vector<std::string>& hosts) {
  const std::string& mine = hosts[static_cast<std::size_t>(rank)];
  const auto is_other = [&](const std::string& host) { return host != mine; };
  if (rank == 0 && (everywhere || std::ranges::none_of(hosts, is_other))) return "";
  return fmt::format("rank {} on host {}: ", rank, mine);
}

}  // namespace

std::vector<std::string> agree_and_gather(Peers& peers, const std::function<std::string()>& work,
                                          const OnFailure& on_failure) {
  const std::vector<std::string> texts = peers.all_gather(text_of(attempt(work)));
  std::vector<Outcome> all;
  all.reserve(texts.size());
  for (const std::string& text : texts) all.push_back(outcome_in(text));
  const auto has_failed = [](const Outcome& outcome) { return outcome.code != 0; };
  const auto failed = std::ranges::find_if(all, has_failed);
  if (failed == all.end()) {
    std::vector<std::string> results;
    results.reserve(all.size());
    for (Outcome& outcome : all) results.push_back(std::move(outcome.result));
    return results;
  }
  const auto rank = static_cast<int>(failed - all.begin());
  std::string message;
  if (on_failure.message) {
    message = on_failure.message(rank, failed->message);
  } else {
    const std::vector<std::string> hosts = peers.all_gather(peers.host());
    message = origin(rank, std::ranges::all_of(all, has_failed), hosts) + failed->message;
  }
  if (on_failure.undo && peers.rank() == 0) on_failure.undo();
  throw Error(static_cast<ExitCode>(failed->code), message).on_all_ranks();
}

void agree(Peers& peers, const std::function<void()>& work, const OnFailure& on_failure) {
  const auto without_result = [&]() -> std::string {
    work();
    return "";
  };
  (void)agree_and_gather(peers, without_result, on_failure);
}

}  // namespace hyperslab::comm
