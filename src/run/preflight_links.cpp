// SPDX-License-Identifier: Apache-2.0
#include "preflight_links.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "hyperslab/plan/price.hpp"

namespace hyperslab::run {
namespace {

constexpr double kSlowGroup = 0.5;
constexpr double kSlowRank = 0.7;

/// A group, as slow as its slowest member found it.
struct Group {
  std::vector<int> ranks;
  std::set<std::string> hosts;
  double seconds = 0;
};
using Groups = std::map<std::pair<comm::GroupRole, int>, Group>;

Groups groups_of(std::span<const RankTimes> ranks) {
  Groups groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const RankTimes::Group& mine : ranks[rank].groups) {
      Group& group = groups[{mine.role, mine.leader}];
      group.ranks.push_back(static_cast<int>(rank));
      group.hosts.insert(ranks[rank].host);
      group.seconds = std::max(group.seconds, mine.seconds);
    }
  }
  return groups;
}

/// Bytes per second that a rank sends around a ring.
double rate_of(const Group& group, double bytes, double seconds) {
  const auto n = static_cast<double>(group.ranks.size());
  return 2 * (n - 1) / n * bytes / seconds;
}

/// The lower one of two in the middle.
double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[(values.size() - 1) / 2];
}

double median_seconds(const Groups& groups, comm::GroupRole role) {
  std::vector<double> seconds;
  for (const auto& [key, group] : groups) {
    if (key.first == role) seconds.push_back(group.seconds);
  }
  return median(seconds);
}

double expected_seconds(const plan::MachineFile& machine, comm::GroupRole role, const Group& group,
                        double bytes) {
  // A collective's price needs no ops, which a file of links alone may lack.
  plan::MachineFile links = machine;
  links.ops = {{"fp32", {plan::OpRow{.op = "none", .size = {}, .seconds = 1}}}};
  const int nodes = static_cast<int>(group.hosts.size());
  const int ranks = static_cast<int>(group.ranks.size());
  return plan::Prices(links, Precision::fp32)
      .of_collective(name_of(role), "all_reduce", {ranks, nodes, std::max(1, ranks / nodes)},
                     bytes);
}

}  // namespace

std::string link_summary(std::span<const RankTimes> ranks, double bytes) {
  const Groups groups = groups_of(ranks);
  std::map<comm::GroupRole, std::vector<double>> rates;
  std::map<comm::GroupRole, std::size_t> sizes;
  for (const auto& [key, group] : groups) {
    rates[key.first].push_back(1e-9 * rate_of(group, bytes, group.seconds));
    sizes[key.first] = group.ranks.size();
  }
  std::string text;
  for (const auto& [role, all] : rates) {
    const auto [least, most] = std::ranges::minmax(all);
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", name_of(role), least);
    if (all.size() > 1) text += fmt::format(" to {:.2f}", most);
    text += fmt::format(" GB/s ({} of {} ranks)", all.size(), sizes[role]);
  }
  return fmt::format("links: {}, in all_reduce of {:.0f} MiB", text, bytes / (1 << 20));
}

std::vector<std::string> slow_groups(std::span<const RankTimes> ranks, double bytes,
                                     const plan::MachineFile* machine) {
  const Groups groups = groups_of(ranks);
  std::vector<std::string> lines;
  for (const auto& [key, group] : groups) {
    const comm::GroupRole role = key.first;
    const double wanted = machine != nullptr ? expected_seconds(*machine, role, group, bytes)
                                             : median_seconds(groups, role);
    if (wanted <= 0 || group.seconds * kSlowGroup <= wanted) continue;
    lines.push_back(fmt::format(
        "slow link: the {} group of ranks {} on host{} {} reaches {:.2f} GB/s in all_reduce of "
        "{:.0f} MiB, {} {:.2f} GB/s; look at its network or NVLink",
        name_of(role), fmt::join(group.ranks, ", "), group.hosts.size() == 1 ? "" : "s",
        fmt::join(group.hosts, ", "), 1e-9 * rate_of(group, bytes, group.seconds),
        bytes / (1 << 20),
        machine != nullptr ? fmt::format("and the machine file of {} expects", machine->name)
                           : std::string("and the median of such groups is"),
        1e-9 * rate_of(group, bytes, wanted)));
  }
  return lines;
}

std::vector<std::string> slow_ranks(std::span<const RankTimes> ranks) {
  std::vector<double> seconds;
  for (const RankTimes& rank : ranks) seconds.push_back(rank.product_seconds);
  const double usual = median(seconds);
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double share = usual / ranks[rank].product_seconds;
    if (share >= kSlowRank) continue;
    lines.push_back(fmt::format(
        "slow rank: rank {} on host {} ({}) multiplies matrices at {:.0f} % of the median rate; "
        "look at its clocks, its cooling and who else uses it",
        rank, ranks[rank].host, ranks[rank].device, 100 * share));
  }
  return lines;
}

}  // namespace hyperslab::run
