// SPDX-License-Identifier: Apache-2.0
// Scores of every layout against double precision on one rank, one target at a time.
#include "hyperslab/tasks/scoring.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "support/mpi_world.hpp"
#include "train/layouts.hpp"
#include "train/small_run.hpp"

namespace hyperslab::tasks {
namespace {

using test::world;

constexpr Dim kContext = 8;  // of the deck
constexpr std::int32_t kVocabulary = 67;

std::vector<Request> random_requests() {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (int i = 0; i < 11; ++i) {
    Request request;
    const std::size_t size = 2 + random() % kContext;
    for (std::size_t j = 0; j < size; ++j) {
      request.ids.push_back(static_cast<std::int32_t>(random() % kVocabulary));
    }
    request.ending = static_cast<std::int64_t>(1 + random() % (size - 1));
    requests.push_back(request);
  }
  return requests;
}

/// Matrices so large that a token depends on all that stands before it.
template <class T>
void enlarge(train::Trainer& trainer) {
  for (const param::Param& param : trainer.stage().params().params()) {
    if (param.init != param::Init::normal) continue;
    for (T& value : param.value.span<T>().first(static_cast<std::size_t>(param.numel()))) {
      value *= 8;
    }
  }
}

/// The evaluated loss of the last token alone, for every token of the ending. A target that is the
/// likeliest is one that the evaluation counts as correct.
std::vector<Score> oracle(const std::vector<Request>& requests) {
  const train::Config config = test::read_layout({}, {}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0, config.groups());
  train::TrainerOptions options;
  options.training = false;
  options.compute = DType::f64;
  options.B = 1;
  test::SmallRun run(config, mesh, 0, options);
  enlarge<double>(run.trainer());
  std::vector<Score> scores;
  for (const Request& request : requests) {
    Score& score = scores.emplace_back(Score{0, true});
    for (std::int64_t dropped = 0; dropped < request.ending; ++dropped) {
      Request one = request;
      one.ids.resize(request.ids.size() - static_cast<std::size_t>(dropped));
      one.ending = 1;
      const std::vector<Request> alone = {one};
      const RequestSamples samples(alone, {0}, kContext);
      const train::Evaluation found = run.trainer().evaluate(samples, 1, world());
      score.log_probability -= found.loss();
      score.is_likeliest = score.is_likeliest && found.accuracy() == 1;
    }
  }
  return scores;
}

std::vector<std::vector<std::string>> layouts() {
  const std::string data = "parallel.data=";
  const std::string tensor = "parallel.tensor=";
  const std::string pipeline = "parallel.pipeline=";
  if (world().size() == 1) return {{}};
  if (world().size() == 2) {
    return {{data + "2"},
            {tensor + "2"},
            {tensor + "2", "parallel.sequence=true"},
            {pipeline + "2"},
            {pipeline + "2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
             "train.microbatch=2"}};
  }
  return {{data + "4"}, {data + "2", tensor + "2"}, {tensor + "2", pipeline + "2"}};
}

TEST(Score, OfEveryLayoutIsTheSumOverSingleTargets) {
  const std::vector<Request> requests = random_requests();
  std::vector<std::size_t> order(requests.size());
  std::iota(order.rbegin(), order.rend(), 0);
  const std::vector<Score> expected = oracle(requests);
  for (const std::vector<std::string>& layout : layouts()) {
    for (const bool training : {false, true}) {
      SCOPED_TRACE(fmt::format("{} training {}", fmt::join(layout, " "), training));
      const train::Config config = test::read_layout({}, layout, world().size());
      const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
      train::TrainerOptions options;
      options.training = training;
      options.B = training ? 0 : 3;
      test::SmallRun run(config, mesh, world().rank(), options);
      enlarge<float>(run.trainer());
      std::vector<Score> found(requests.size());

      score(run.trainer(), requests, order, world(), found);

      for (std::size_t i = 0; i < requests.size(); ++i) {
        EXPECT_NEAR(found[i].log_probability, expected[i].log_probability,
                    1e-5 * std::abs(expected[i].log_probability))
            << i;
        EXPECT_EQ(found[i].is_likeliest, expected[i].is_likeliest) << i;
      }
    }
  }
}

TEST(Score, OfShorterSequencesIsTheSame) {
  if (world().size() > 1) GTEST_SKIP() << "one rank is enough";
  const std::vector<Request> requests = random_requests();
  const std::vector<Score> expected = oracle(requests);
  const train::Config config = test::read_layout({}, {}, 1);
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  std::vector<Score> found(requests.size());
  const auto buckets = make_buckets(requests, kContext, 2, 3);

  for (const Bucket& bucket : buckets) {
    train::TrainerOptions options;
    options.training = false;
    options.T = bucket.T;
    test::SmallRun run(config, mesh, 0, options);
    enlarge<float>(run.trainer());
    score(run.trainer(), requests, bucket.requests, world(), found);
  }

  ASSERT_EQ(buckets.size(), 3U);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_NEAR(found[i].log_probability, expected[i].log_probability,
                1e-5 * std::abs(expected[i].log_probability));
  }
}

}  // namespace
}  // namespace hyperslab::tasks
