// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/requests.hpp"

#include <gtest/gtest.h>

#include "hyperslab/ops/loss.hpp"
#include "hyperslab/tasks/scoring.hpp"
#include "support/refusal.hpp"
#include "support/tensors.hpp"

namespace hyperslab::tasks {
namespace {

using Ids = std::vector<std::int32_t>;

/// A token is a byte, or a byte with the space before it: 1000 + the byte.
class SpacedBytes final : public io::Tokenizer {
 public:
  explicit SpacedBytes(Ids before = {}) : before_(std::move(before)) {}
  [[nodiscard]] std::int64_t vocabulary() const override { return 2000; }
  [[nodiscard]] Ids encode(std::string_view text) const override {
    Ids ids;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool joins = text[i] == ' ' && i + 1 < text.size();
      if (joins) ++i;
      ids.push_back((joins ? 1000 : 0) + static_cast<unsigned char>(text[i]));
    }
    return ids;
  }
  [[nodiscard]] std::string decode(std::int32_t /*id*/) const override { return {}; }
  [[nodiscard]] bool is_special(std::int32_t /*id*/) const override { return false; }
  [[nodiscard]] std::int32_t end_of_text() const override { return 1999; }
  [[nodiscard]] io::TextTemplate text_template() const override { return {before_, {}}; }

 private:
  Ids before_;
};

TEST(Encode, CutsTheWholeTextWhereTheContextEnds) {
  const Request request = encode(SpacedBytes(), {"ab", "cd"}, " ", 100);

  EXPECT_EQ(request.ids, (Ids{'a', 'b', 1000 + 'c', 'd'}));
  EXPECT_EQ(request.ending, 2);
  EXPECT_EQ(request.positions(), 3);
}

TEST(Encode, SpacesAtTheEndOfTheContextGoToTheEnding) {
  const auto [context, ending] = move_spaces("a b \n\xE3\x80\x80\xC2\xA0", "c");
  EXPECT_EQ(context, "a b");
  EXPECT_EQ(ending,
            " \n\xE3\x80\x80\xC2\xA0"
            "c");

  const Request request = encode(SpacedBytes(), {"ab ", "c"}, "", 100);

  EXPECT_EQ(request.ids, (Ids{'a', 'b', 1000 + 'c'}));
  EXPECT_EQ(request.ending, 1);
}

/// As SpacedBytes; "123" is a token, too, and so is "dd".
class JoiningBytes final : public io::Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocabulary() const override { return 2000; }
  [[nodiscard]] Ids encode(std::string_view text) const override {
    Ids ids;
    while (!text.empty()) {
      const std::size_t bytes = text.starts_with("123") ? 3 : text.starts_with("dd") ? 2 : 1;
      ids.push_back(bytes == 3 ? 1123 : bytes == 2 ? 1100 : static_cast<unsigned char>(text[0]));
      text.remove_prefix(bytes);
    }
    return ids;
  }
  [[nodiscard]] std::string decode(std::int32_t /*id*/) const override { return {}; }
  [[nodiscard]] bool is_special(std::int32_t /*id*/) const override { return false; }
  [[nodiscard]] std::int32_t end_of_text() const override { return 1999; }
};

// lm_eval's _encode_pair: whole[len(ids of the context):] after the ids of the context alone. The
// model must not read the beginning of an ending that shares a token with the context.
TEST(Encode, ATokenAcrossTheBorderGivesNothingOfTheEndingAway) {
  const Request request = encode(JoiningBytes(), {"n12", "34"}, "", 100);

  // The whole text is n, 123, 4, and the context n, 1, 2: 3 tokens, after which nothing remains.
  EXPECT_EQ(request.ids, (Ids{'n', '1', '2'}));
  EXPECT_EQ(request.ending, 0);

  const Request longer = encode(JoiningBytes(), {"n12", "3456"}, "", 100);

  EXPECT_EQ(longer.ids, (Ids{'n', '1', '2', '5', '6'}));
  EXPECT_EQ(longer.ending, 2);
}

TEST(Encode, AnEndingWithoutATokenOfItsOwnIsEmpty) {
  const Request request = encode(JoiningBytes(), {"ad", "d"}, "", 100);

  EXPECT_EQ(request.ids, (Ids{'a', 'd'}));
  EXPECT_EQ(request.ending, 0);
  EXPECT_EQ(with_endings({request, {{1, 2}, 1}}), (std::vector<std::size_t>{1}));
  const std::vector<Score> scores = scores_of_nothing({request, {{1, 2}, 1}});
  EXPECT_TRUE(scores[0].is_likeliest);
  EXPECT_FALSE(scores[1].is_likeliest);
  EXPECT_EQ(make_buckets({request, {{1, 2}, 1}}, 16, 16, 4).front().requests,
            (std::vector<std::size_t>{1}));
}

TEST(Encode, PutsTheTemplateOrTheEndOfTextInFront) {
  EXPECT_EQ(encode(SpacedBytes({7}), {"a", "b"}, "", 100).ids, (Ids{7, 'a', 'b'}));
  EXPECT_EQ(encode(SpacedBytes({7}), {"", "b"}, "", 100).ids, (Ids{7, 'b'}));
  EXPECT_EQ(encode(SpacedBytes(), {"", "b"}, "", 100).ids, (Ids{1999, 'b'}));
  EXPECT_EQ(encode(SpacedBytes(), {" ", "b"}, "", 100).ids, (Ids{1999, 1000 + 'b'}));
}

TEST(Encode, KeepsTheEndOfALongContext) {
  const Request request = encode(SpacedBytes({7}), {"abcdef", "gh"}, "", 4);

  EXPECT_EQ(request.ids, (Ids{'d', 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(request.ending, 2);
}

TEST(Encode, EndingsThatCannotBeScoredAreRefused) {
  Task task;
  task.path = "some.jsonl";
  task.questions = {{"", 2, {{"a", "b"}}, 0}, {"", 5, {{"a", "bcdef"}}, 0}};

  test::expect_error(ExitCode::data, {"some.jsonl:5: ", "5 tokens", "context of 4"},
                     [&] { (void)encode(SpacedBytes(), task, 4); });
}

TEST(Buckets, AreTheCheapestAndKeepEveryRequest) {
  std::vector<Request> requests;
  for (const std::int64_t positions : {5, 100, 6, 97, 40, 7, 16, 128}) {
    requests.push_back({Ids(static_cast<std::size_t>(positions + 1)), 1});
  }

  const auto three = make_buckets(requests, 120, 16, 3);
  const auto one = make_buckets(requests, 120, 16, 1);

  ASSERT_EQ(three.size(), 3U);
  EXPECT_EQ(three[0].T, 16);
  EXPECT_EQ(three[0].requests, (std::vector<std::size_t>{0, 2, 5, 6}));
  EXPECT_EQ(three[1].T, 48);
  EXPECT_EQ(three[1].requests, (std::vector<std::size_t>{4}));
  EXPECT_EQ(three[2].T, 120);
  EXPECT_EQ(three[2].requests, (std::vector<std::size_t>{7, 1, 3}));
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].requests.size(), 8U);
  EXPECT_TRUE(make_buckets({}, 120, 16, 4).empty());
}

TEST(Samples, CountTokensOfEndingsAlone) {
  const std::vector<Request> requests = {{{1, 2, 3}, 1}, {{4, 5, 6, 7}, 2}};
  const RequestSamples samples(requests, {1, 0}, 4);
  Tensor tokens(Device::cpu, DType::i32, {3, 4});
  Tensor targets(Device::cpu, DType::i32, {3, 4});
  Batch batch;
  batch.tokens = tokens.view();
  batch.targets = targets.view();

  samples.read(0, 2, batch);

  const auto ids = [](const Tensor& of) {
    const auto all = of.view().flat().span<std::int32_t>();
    return Ids(all.begin(), all.end());
  };
  constexpr std::int32_t kNone = ops::kIgnoredTarget;
  EXPECT_EQ(ids(tokens), (Ids{4, 5, 6, 0, 1, 2, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(ids(targets),
            (Ids{kNone, 6, 7, kNone, kNone, 3, kNone, kNone, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(samples.counted(0), 2);
  EXPECT_EQ(samples.which(0), 1U);
}

}  // namespace
}  // namespace hyperslab::tasks
