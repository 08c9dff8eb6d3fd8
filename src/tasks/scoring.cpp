// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/scoring.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::tasks {
namespace {

/// As ranks send it.
struct Scored {
  std::uint64_t request = 0;
  double log_probability = 0;
  std::uint64_t is_likeliest = 0;
};

/// scores: (T, ops::kTargetScoreCount) of the request's positions and padding.
template <class T>
Score sum_of(const Request& request, std::span<const T> scores) {
  Score sum = {0, true};
  for (std::int64_t i = request.positions() - request.ending; i < request.positions(); ++i) {
    const T* of_target = scores.data() + i * ops::kTargetScoreCount;
    sum.log_probability -= static_cast<double>(of_target[ops::kScoreLoss]);
    sum.is_likeliest = sum.is_likeliest && of_target[ops::kScoreIsAnswer] != 0;
  }
  return sum;
}

Score sum_of(const Request& request, CView scores) {
  return scores.dtype() == DType::f64 ? sum_of(request, scores.span<double>())
                                      : sum_of(request, scores.span<float>());
}

/// The scores of all ranks, in no order, on every rank.
std::vector<Scored> shared(comm::World& world, const std::vector<Scored>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Scored));
  std::string all;
  for (const std::string& part : world.gather(bytes)) all += part;
  all = world.broadcast(all);
  std::vector<Scored> out(all.size() / sizeof(Scored));
  if (!out.empty()) std::memcpy(out.data(), all.data(), all.size());
  return out;
}

}  // namespace

std::vector<std::size_t> with_endings(const std::vector<Request>& requests) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].ending > 0) out.push_back(i);
  }
  return out;
}

std::vector<Score> scores_of_nothing(const std::vector<Request>& requests) {
  std::vector<Score> scores;
  for (const Request& request : requests) scores.push_back({0, request.ending == 0});
  return scores;
}

std::vector<Bucket> make_buckets(const std::vector<Request>& requests, Dim longest, Dim multiple,
                                 int most_buckets) {
  const auto padded = [&](std::size_t i) {
    const Dim positions = requests[i].positions();
    return std::min(longest, (positions + multiple - 1) / multiple * multiple);
  };
  std::vector<std::size_t> order = with_endings(requests);
  std::ranges::stable_sort(order, std::ranges::greater{}, padded);
  // cheapest[k][n]: positions of the n longest requests in k buckets; cut only where lengths
  // change.
  std::vector<std::size_t> cuts = {0};
  for (std::size_t n = 1; n <= order.size(); ++n) {
    if (n == order.size() || padded(order[n]) != padded(order[n - 1])) cuts.push_back(n);
  }
  const std::size_t lengths = cuts.size() - 1;
  const auto buckets = std::min<std::size_t>(lengths, static_cast<std::size_t>(most_buckets));
  std::vector<std::vector<double>> cheapest(buckets + 1, std::vector<double>(lengths + 1, 1e300));
  std::vector<std::vector<std::size_t>> from(buckets + 1, std::vector<std::size_t>(lengths + 1, 0));
  cheapest[0][0] = 0;
  for (std::size_t k = 1; k <= buckets; ++k) {
    for (std::size_t end = 1; end <= lengths; ++end) {
      for (std::size_t begin = 0; begin < end; ++begin) {
        const auto T = static_cast<double>(padded(order[cuts[begin]]));
        const double cost =
            cheapest[k - 1][begin] + T * static_cast<double>(cuts[end] - cuts[begin]);
        if (cost >= cheapest[k][end]) continue;
        cheapest[k][end] = cost;
        from[k][end] = begin;
      }
    }
  }
  std::vector<Bucket> out;
  for (std::size_t k = buckets, end = lengths; k > 0; end = from[k][end], --k) {
    const std::size_t begin = cuts[from[k][end]];
    out.push_back({padded(order[begin]),
                   {order.begin() + static_cast<std::ptrdiff_t>(begin),
                    order.begin() + static_cast<std::ptrdiff_t>(cuts[end])}});
  }
  return out;
}

bool score(train::Trainer& trainer, const std::vector<Request>& requests,
           const std::vector<std::size_t>& order, comm::World& world, std::vector<Score>& scores,
           const std::function<bool()>& is_asked_to_stop) {
  const RequestSamples samples(requests, order, trainer.sequence());
  std::vector<Scored> mine;
  train::Trainer::EvaluationCalls calls;
  calls.scores = [&](std::int64_t first, CView found) {
    const Dim B = found.shape()[0];
    for (std::int64_t i = first; i < std::min(first + B, samples.size()); ++i) {
      const Score sum = sum_of(samples.request(i), found.slice(i - first, 1));
      mine.push_back({samples.which(i), sum.log_probability, sum.is_likeliest ? 1U : 0U});
    }
  };
  calls.is_asked_to_stop = is_asked_to_stop;
  if (!trainer.evaluate(samples, samples.size(), world, calls).is_whole) return false;
  const std::vector<Scored> all = shared(world, mine);
  require(all.size() == order.size(), "requests were left out or scored twice");
  for (const Scored& one : all) {
    scores.at(one.request) = {one.log_probability, one.is_likeliest != 0};
  }
  return true;
}

}  // namespace hyperslab::tasks
