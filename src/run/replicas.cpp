// SPDX-License-Identifier: Apache-2.0
#include "replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::run {
namespace {

using Ranks = std::vector<int>;

std::string named(const mesh::ParallelConfig& parallel, const std::vector<ReplicaSum>& all,
                  const Ranks& ranks) {
  std::string text;
  for (const int rank : ranks) {
    const ReplicaSum& one = all[static_cast<std::size_t>(rank)];
    text += fmt::format("{}rank {} ({}) on host {}", text.empty() ? "" : ", ", rank,
                        mesh::describe(mesh::Position(parallel, rank)), one.host);
  }
  return text;
}

using Member = std::uint64_t train::TrainerState::ReplicaSums::*;

/// The problem of ranks for which `member` must be equal.
std::string problem_of(const mesh::ParallelConfig& parallel, const std::vector<ReplicaSum>& all,
                       const Ranks& ranks, Member member) {
  std::map<std::uint64_t, Ranks> by_sum;
  for (const int rank : ranks) {
    by_sum[all[static_cast<std::size_t>(rank)].sums.*member].push_back(rank);
  }
  if (by_sum.size() == 1) return "";
  const auto most =
      std::ranges::max_element(by_sum, {}, [](const auto& entry) { return entry.second.size(); });
  if (2 * most->second.size() <= ranks.size()) {
    return fmt::format("{} differ from each other, and so many cannot show which of them is wrong",
                       named(parallel, all, ranks));
  }
  Ranks others;
  for (const auto& [sum, members] : by_sum) {
    if (sum != most->first) others.insert(others.end(), members.begin(), members.end());
  }
  std::ranges::sort(others);
  return fmt::format("{} differ{} from the other {} of {} replicas", named(parallel, all, others),
                     others.size() == 1 ? "s" : "", most->second.size(), ranks.size());
}

/// Names those of the ranks along `axes` that differ in `member`.
std::string differing(const mesh::ParallelConfig& parallel, const std::vector<ReplicaSum>& all,
                      mesh::AxisSet axes, Member member) {
  std::map<int, Ranks> alike;  // by their first
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const mesh::Position first = mesh::Position(parallel, rank).moved(axes, 0);
    alike[first.world_rank()].push_back(rank);
  }
  std::string text;
  for (const auto& [first, ranks] : alike) {
    const std::string problem = problem_of(parallel, all, ranks, member);
    if (!problem.empty()) text += (text.empty() ? "" : "; ") + problem;
  }
  return text;
}

}  // namespace

std::string differing_replicas(const mesh::ParallelConfig& parallel,
                               const std::vector<ReplicaSum>& all) {
  using Sums = train::TrainerState::ReplicaSums;
  const std::string whole = differing(parallel, all, mesh::kGradients, &Sums::whole);
  if (!whole.empty()) return whole;
  const std::string experts = differing(parallel, all, mesh::kExpertGradients, &Sums::experts);
  if (!experts.empty()) return experts;
  return differing(parallel, all, mesh::Axis::replica, &Sums::shards);
}

void compare_replicas(comm::World& world, const mesh::ParallelConfig& parallel,
                      const train::TrainerState::ReplicaSums& mine, std::int64_t step) {
  std::vector<ReplicaSum> all;
  for (const std::string& text : world.all_gather(
           fmt::format("{} {} {} {}", mine.whole, mine.shards, mine.experts, world.host()))) {
    std::istringstream words(text);
    ReplicaSum& one = all.emplace_back();
    words >> one.sums.whole >> one.sums.shards >> one.sums.experts >> one.host;
  }
  const std::string problem = differing_replicas(parallel, all);
  if (problem.empty()) return;
  throw Error(ExitCode::numerics,
              fmt::format("after step {} parameters that must be equal are not: {}; suspect the "
                          "memory or device there, leave that host out and go on from a "
                          "checkpoint of before (--resume STEP)",
                          step, problem))
      .on_all_ranks();
}

std::string describe_bad_numbers(comm::World& world, const mesh::ParallelConfig& parallel,
                                 const train::Trainer::BadNumbers& mine) {
  constexpr int kMostNamed = 8;
  std::string text;
  int named_ranks = 0;
  if (mine.loss) text = "its loss";
  if (!mine.tensor.empty()) {
    text += fmt::format("{}the gradient of {}", mine.loss ? " and " : "", mine.tensor);
  }
  const std::string own = text.empty() ? "" : fmt::format("{}: {}", world.host(), text);
  std::string all;
  int rank = 0;
  for (const std::string& found : world.all_gather(own)) {
    const int at = rank++;
    if (found.empty() || ++named_ranks > kMostNamed) continue;
    all += fmt::format("{}rank {} ({}) on host {}", all.empty() ? "" : "; ", at,
                       mesh::describe(mesh::Position(parallel, at)), found);
  }
  if (named_ranks == 0) {
    return "the numbers of every rank are finite, so their sum is too large, or a device erred";
  }
  if (named_ranks > kMostNamed) all += fmt::format("; and {} more", named_ranks - kMostNamed);
  return all + " (the first in the order of the model)";
}

}  // namespace hyperslab::run
