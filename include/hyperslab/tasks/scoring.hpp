// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/tasks/requests.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::tasks {

/// A model's score of a request's ending.
struct Score {
  double log_probability = 0;  ///< nats, the sum over its tokens
  bool is_likeliest = false;   ///< every token is the likeliest where it stands
};

/// Requests that are scored together, padded to T positions.
struct Bucket {
  Dim T = 0;
  std::vector<std::size_t> requests;  ///< the longest first
};

/// Which requests have an ending with a token of its own. The others need no model:
/// scores_of_nothing() are theirs.
[[nodiscard]] std::vector<std::size_t> with_endings(const std::vector<Request>& requests);

/// Scores before a model is asked: an ending without tokens has the probability 1, as in
/// lm-evaluation-harness, and every one of its tokens is the likeliest.
[[nodiscard]] std::vector<Score> scores_of_nothing(const std::vector<Request>& requests);

/// At most `most_buckets` buckets with the fewest positions in all; their lengths are multiples of
/// `multiple`, or `longest`. No request has more than `longest` positions. Requests without an
/// ending are in none.
[[nodiscard]] std::vector<Bucket> make_buckets(const std::vector<Request>& requests, Dim longest,
                                               Dim multiple, int most_buckets);

/// Scores the requests of `order` with the trainer's forward pass, on its layout, and puts them
/// into the same places of `scores` on every rank. None may have more than trainer.sequence()
/// positions. Collective over the world. False: it was cut short because `is_asked_to_stop`, which
/// may be empty, was true on a rank; then the scores mean nothing.
bool score(train::Trainer& trainer, const std::vector<Request>& requests,
           const std::vector<std::size_t>& order, comm::World& world, std::vector<Score>& scores,
           const std::function<bool()>& is_asked_to_stop = {});

}  // namespace hyperslab::tasks
