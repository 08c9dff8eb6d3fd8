// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/figures.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/refusal.hpp"

namespace hyperslab::tasks {
namespace {

Task choice_task() {
  Task task;
  task.name = "t";
  task.path = "t.jsonl";
  task.metric = "acc_norm";
  // "ää": two characters of two bytes.
  task.questions = {{"", 2, {{"q", "abcd"}, {"q", "\xC3\xA4\xC3\xA4"}}, 0},
                    {"", 3, {{"q", "a"}, {"q", "b"}, {"q", "c"}}, 2},
                    {"", 4, {{"q", "a"}, {"q", "b"}}, 1}};
  return task;
}

std::vector<Request> requests_of(const std::vector<std::int64_t>& endings) {
  std::vector<Request> requests;
  for (const std::int64_t ending : endings) requests.push_back({{}, ending});
  return requests;
}

TEST(Figures, OfAChoiceByHand) {
  const std::vector<Request> requests = requests_of({1, 2, 1, 1, 1, 1, 1});
  // Question 1: -6 and -5; by characters -1.5 and -2.5, by bytes -1.5 and -1.25, by tokens -6 and
  // -2.5. Question 2 is right, question 3 a draw, of which the first is the answer.
  const std::vector<Score> scores = {{-6, false}, {-5, false}, {-3, false}, {-2, false},
                                     {-1, true},  {-4, false}, {-4, false}};

  const Result result = figures(choice_task(), requests, scores);

  const double one = 1.0 / 3;
  const double two = 2.0 / 3;
  EXPECT_EQ(result.questions, 3);
  EXPECT_EQ(result.endings, 7);
  EXPECT_EQ(result.metric, "acc_norm");
  EXPECT_DOUBLE_EQ(result.figure("acc").value, one);
  EXPECT_DOUBLE_EQ(result.figure("acc_norm").value, two);
  EXPECT_DOUBLE_EQ(result.figure("acc_bytes").value, one);
  EXPECT_DOUBLE_EQ(result.figure("acc_token").value, one);
  for (const Figure& figure : result.figures) {  // sqrt(p (1 - p) / (n - 1))
    EXPECT_DOUBLE_EQ(figure.standard_error, std::sqrt(one * two / 2)) << figure.name;
  }
}

TEST(Figures, OfACompletionByHand) {
  Task task;
  task.kind = Kind::completion;
  task.metric = "acc";
  task.questions = {{"", 2, {{"q", "a"}}, 0}, {"", 3, {{"q", "b"}}, 0}};
  const std::vector<Score> scores = {{-1, true}, {-3, false}};

  const Result result = figures(task, requests_of({1, 1}), scores);

  EXPECT_DOUBLE_EQ(result.figure("acc").value, 0.5);
  EXPECT_DOUBLE_EQ(result.figure("acc").standard_error, 0.5);
  EXPECT_DOUBLE_EQ(result.figure("perplexity").value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(result.figure("perplexity").standard_error, std::exp(2.0));  // times 1
}

TEST(Figures, OneQuestionHasNoStandardError) {
  Task task = choice_task();
  task.questions.resize(1);

  const Result result =
      figures(task, requests_of({1, 1}), std::vector<Score>{{-1, false}, {-2, false}});

  EXPECT_EQ(result.figure("acc").value, 1);
  EXPECT_TRUE(std::isnan(result.figure("acc").standard_error));
}

TEST(Figures, ALogProbabilityThatIsNoNumberIsRefusedWithItsLine) {
  for (const double bad : {std::nan(""), -std::numeric_limits<double>::infinity()}) {
    std::vector<Score> scores(7, Score{-1, false});
    scores[3].log_probability = bad;

    test::expect_error(ExitCode::numerics, {"t.jsonl:3: ", "no finite number"}, [&] {
      (void)figures(choice_task(), requests_of({1, 1, 1, 1, 1, 1, 1}), scores);
    });
  }
}

}  // namespace
}  // namespace hyperslab::tasks
