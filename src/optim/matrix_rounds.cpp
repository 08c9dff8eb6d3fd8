// SPDX-License-Identifier: Apache-2.0
#include "matrix_rounds.hpp"

#include <algorithm>
#include <tuple>

#include "hyperslab/ops/muon.hpp"

namespace hyperslab::optim {
namespace {

/// A matrix with its place among the group's parameters, which is the same on every rank.
struct Candidate {
  const param::Param* param;
  std::size_t place;
  [[nodiscard]] const Shape& shape() const { return param->global_shape; }
  [[nodiscard]] double cost() const { return ops::orthogonalize_flops(shape()[0], shape()[1]); }
  [[nodiscard]] auto order() const { return std::tuple(-cost(), shape()[0], shape()[1], place); }
};

std::vector<Candidate> candidates_of(const param::ParamGroup& group, bool of_experts) {
  std::vector<Candidate> out;
  for (std::size_t place = 0; place < group.params().size(); ++place) {
    const param::Param& param = *group.params()[place];
    if (is_matrix(param) && param.placement.expert.is_shard() == of_experts) {
      out.push_back({&param, place});
    }
  }
  std::ranges::sort(out, {}, &Candidate::order);
  return out;
}

/// By owner, in the order of the candidates.
std::vector<std::vector<Candidate>> deal_out(const std::vector<Candidate>& candidates, int owners) {
  std::vector<std::vector<Candidate>> hands(static_cast<std::size_t>(owners));
  std::vector<double> cost(hands.size(), 0);
  for (const Candidate& candidate : candidates) {
    const auto least = static_cast<std::size_t>(std::ranges::min_element(cost) - cost.begin());
    hands[least].push_back(candidate);
    cost[least] += candidate.cost();
  }
  return hands;
}

}  // namespace

bool is_matrix(const param::Param& param) {
  return param.role == param::Role::matrix && param.part.count.rank() == 2 && param.numel() > 0;
}

std::vector<MatrixRound> plan_matrix_rounds(const param::ParamGroup& group, bool of_experts,
                                            int owners, Dim most_elements) {
  std::vector<MatrixRound> rounds;
  const std::vector<std::vector<Candidate>> hands =
      deal_out(candidates_of(group, of_experts), owners);
  for (std::size_t owner = 0; owner < hands.size(); ++owner) {
    std::size_t round = 0;
    Dim elements = 0;
    for (const Candidate& candidate : hands[owner]) {
      const Dim more = candidate.shape().numel();
      if (elements > 0 && elements + more > most_elements) {
        ++round;
        elements = 0;
      }
      elements += more;
      if (rounds.size() <= round) rounds.resize(round + 1);
      rounds[round].push_back({candidate.param, static_cast<int>(owner)});
    }
  }
  return rounds;
}

}  // namespace hyperslab::optim
