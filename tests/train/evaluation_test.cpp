// SPDX-License-Identifier: Apache-2.0
// Losses of every layout against a double-precision sum over single targets, and the text that
// targets are against a walk over its bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <numbers>
#include <random>

#include "hyperslab/ops/loss.hpp"
#include "support/mpi_world.hpp"
#include "train/layouts.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::world;
using Ids = std::vector<std::int32_t>;

constexpr Dim kContext = 8;  // of the deck
constexpr std::int32_t kVocabulary = 67;

/// Random ids with a loss mask.
class RandomTokens final : public io::TokenSource {
 public:
  RandomTokens(std::int64_t size, bool masked) : masked_(masked) {
    std::mt19937 random(5);
    for (std::int64_t i = 0; i < size; ++i) {
      ids_.push_back(static_cast<std::int32_t>(random() % kVocabulary));
      mask_.push_back(random() % 4 == 0 ? 0 : 1);
    }
  }
  /// Tokens [first, first + kContext + 1) of another source, of which only the target at `position`
  /// counts.
  RandomTokens(const RandomTokens& of, std::int64_t first, Dim position) : masked_(true) {
    ids_.assign(of.ids_.begin() + first, of.ids_.begin() + first + kContext + 1);
    mask_.assign(ids_.size(), 0);
    mask_[static_cast<std::size_t>(position) + 1] = 1;
  }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(ids_); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    std::ranges::copy_n(ids_.begin() + first, std::ssize(out), out.begin());
  }
  [[nodiscard]] std::string description() const override { return "random tokens"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }
  [[nodiscard]] bool has_mask() const override { return masked_; }
  void read_mask(std::int64_t first, std::span<std::uint8_t> out) const override {
    std::ranges::copy_n(mask_.begin() + first, std::ssize(out), out.begin());
  }
  [[nodiscard]] bool counts(std::int64_t position) const {
    return !masked_ || mask_[static_cast<std::size_t>(position)] != 0;
  }

 private:
  bool masked_;
  Ids ids_;
  std::vector<std::uint8_t> mask_;
};

/// Matrices so large that the loss of a token depends on all that stands before it.
void enlarge(train::Trainer& trainer) {
  for (const param::Param& param : trainer.stage().params().params()) {
    if (param.init != param::Init::normal) continue;
    const auto count = static_cast<std::size_t>(param.numel());
    if (param.value.dtype() == DType::f64) {
      for (double& value : param.value.span<double>().first(count)) value *= 8;
    } else {
      for (float& value : param.value.span<float>().first(count)) value *= 8;
    }
  }
}

/// The model on one rank in double precision, asked for one target at a time.
class Oracle {
 public:
  Oracle()
      : config_(test::read_layout({}, {}, 1)),
        mesh_(mesh::Mesh::plan(config_.parallel, 0, config_.groups())),
        run_(config_, mesh_, 0, options()) {
    enlarge(run_.trainer());
  }

  /// What windows of kContext tokens say that begin `stride` apart and count what is new in them.
  train::Evaluation sum(const RandomTokens& tokens, std::int64_t targets, Dim stride) {
    train::Evaluation out;
    std::int64_t seen = 0;
    for (std::int64_t begin = 0; seen < targets; begin += stride) {
      const std::int64_t end = std::min(begin + kContext, targets);
      for (; seen < end; ++seen) {
        if (!tokens.counts(seen + 1)) continue;
        const train::Evaluation one = at(tokens, end - kContext, seen - (end - kContext));
        out.loss_sum += one.loss();
        out.correct += one.accuracy();
        out.tokens += 1;
        out.weights += 1;
      }
    }
    return out;
  }

 private:
  static train::TrainerOptions options() {
    train::TrainerOptions options;
    options.training = false;
    options.compute = DType::f64;
    options.B = 1;
    return options;
  }

  train::Evaluation at(const RandomTokens& tokens, std::int64_t first, Dim position) {
    const auto [found, is_new] = known_.try_emplace({first, position});
    if (is_new) {
      const RandomTokens window(tokens, first, position);
      const io::TokenSamples samples(window, io::Sampling::blocks, kContext, 0, false);
      found->second = run_.trainer().evaluate(samples, 1, world());
    }
    return found->second;
  }

  train::Config config_;
  mesh::Mesh mesh_;
  test::SmallRun run_;
  std::map<std::pair<std::int64_t, Dim>, train::Evaluation> known_;
};

std::vector<std::vector<std::string>> layouts() {
  const std::string data = "parallel.data=";
  const std::string tensor = "parallel.tensor=";
  const std::string pipeline = "parallel.pipeline=";
  const std::string context = "parallel.context=";
  if (world().size() == 1) return {{}};
  if (world().size() == 2) {
    return {{data + "2"},
            {data + "2", "parallel.zero=3", "parallel.bucket_mib=0.01"},
            {context + "2"},
            {context + "2", "parallel.zero=3", "parallel.bucket_mib=0.01"},
            {tensor + "2"},
            {tensor + "2", "parallel.sequence=true"},
            {pipeline + "2"},
            {pipeline + "2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"}};
  }
  return {{data + "4"},
          {data + "4", "parallel.zero=3", "parallel.shard=2", "parallel.bucket_mib=0.01"},
          {tensor + "4", "parallel.sequence=true"},
          {pipeline + "4"},
          {data + "2", context + "2"},
          {data + "2", tensor + "2"},
          {data + "2", pipeline + "2"},
          {tensor + "2", pipeline + "2", "parallel.sequence=true"}};
}

class Evaluation : public testing::TestWithParam<bool> {};

TEST_P(Evaluation, OfEveryLayoutIsTheSumOverSingleTargets) {
  Oracle oracle;
  const RandomTokens tokens(44, GetParam());
  const double much = oracle.sum(tokens, 40, 1).loss();  // context
  ASSERT_GT(std::abs(much / oracle.sum(tokens, 40, kContext).loss() - 1), 1e-3);
  for (std::vector<std::string> layout : layouts()) {
    for (const char* microbatch : {"train.microbatch=1", "train.microbatch=2"}) {
      layout.emplace_back(microbatch);
      const train::Config config = test::read_layout({}, layout, world().size());
      const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
      train::TrainerOptions options;
      options.training = false;
      test::SmallRun run(config, mesh, world().rank(), options);
      enlarge(run.trainer());
      const auto check = [&](const io::TokenSamples& samples, std::int64_t targets, Dim stride) {
        SCOPED_TRACE(
            fmt::format("{} stride {} targets {}", fmt::join(layout, " "), stride, targets));
        const auto found = run.trainer().evaluate(samples, samples.size(), world());
        const auto expected = oracle.sum(tokens, targets, stride);
        EXPECT_EQ(found.tokens, expected.tokens);
        EXPECT_EQ(found.correct, expected.correct);
        EXPECT_NEAR(found.loss() / expected.loss(), 1, 1e-6);
      };
      check(io::TokenSamples(tokens, io::Sampling::blocks, kContext, 0, false), 40, kContext);
      for (const Dim stride : {1, 3, 8}) {
        for (const std::int64_t targets : {43, 8, 9}) {
          check(io::TokenSamples::strided(tokens, kContext, stride, targets), targets, stride);
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Masks, Evaluation, testing::Bool());

/// The last id is special, and ids of the data may lie beyond those of the text.
class FewTexts final : public io::Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocabulary() const override { return std::ssize(texts_); }
  [[nodiscard]] Ids encode(std::string_view /*text*/) const override { return {}; }
  [[nodiscard]] std::string decode(std::int32_t id) const override {
    return texts_.at(static_cast<std::size_t>(id));
  }
  [[nodiscard]] std::string decode_first(std::int32_t id) const override {
    const std::string text = decode(id);
    return text.starts_with(' ') ? text.substr(1) : text;
  }
  [[nodiscard]] bool is_special(std::int32_t id) const override { return id == vocabulary() - 1; }
  [[nodiscard]] std::int32_t end_of_text() const override { return -1; }

 private:
  std::vector<std::string> texts_ = {" the", "re",     " ",  "\n\n", "a b\tc", "\xC3",
                                     "\xA9", " x\r\n", "\v", ".",    "\f end", "<|special text|>"};
};

/// Ids of FewTexts, drawn.
class TextTokens final : public io::TokenSource {
 public:
  explicit TextTokens(std::int64_t size) {
    std::mt19937 random(9);
    for (std::int64_t i = 0; i < size; ++i)
      ids_.push_back(static_cast<std::int32_t>(random() % 12));
  }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(ids_); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    std::ranges::copy_n(ids_.begin() + first, std::ssize(out), out.begin());
  }
  [[nodiscard]] std::string description() const override { return "text tokens"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }
  [[nodiscard]] const Ids& ids() const { return ids_; }

 private:
  Ids ids_;
};

/// All bytes one by one, marked with whether their token is a counted target.
train::TextAmount walk(const FewTexts& texts, const Ids& ids, std::int32_t ignored) {
  train::TextAmount out;
  bool in_word = false;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (texts.is_special(ids[i])) {
      in_word = false;
      continue;
    }
    const double counts = i > 0 && ids[i] != ignored ? 1 : 0;
    const bool begins = i > 0 && texts.is_special(ids[i - 1]);
    for (const char c : begins ? texts.decode_first(ids[i]) : texts.decode(ids[i])) {
      const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
      out.bytes += counts;
      out.words += !space && !in_word ? counts : 0;
      out.line_ends += c == '\n' ? counts : 0;
      in_word = !space;
    }
  }
  return out;
}

TEST(CountText, IsAWalkOverTheBytes) {
  const FewTexts texts;
  const TextTokens tokens(1001);
  for (const std::int32_t ignored : {-1, 1}) {
    const train::TextAmount expected = walk(texts, tokens.ids(), ignored);
    for (const Dim stride : {2, 5, 10}) {
      const auto samples = io::TokenSamples::strided(tokens, 10, stride, 1000, {ignored});
      const train::TextAmount found = train::count_text(samples, samples.size(), texts, world());
      EXPECT_EQ(found.bytes, expected.bytes) << stride;
      EXPECT_EQ(found.words, expected.words) << stride;
      EXPECT_EQ(found.line_ends, expected.line_ends) << stride;
    }
  }
}

TEST(CountText, AnIdThatIsNotInTheVocabularyIsRefusedOnEveryRank) {
  const FewTexts texts;
  const RandomTokens tokens(44, false);
  const io::TokenSamples samples(tokens, io::Sampling::blocks, kContext, 0, false);

  try {
    (void)train::count_text(samples, samples.size(), texts, world());
    ADD_FAILURE() << "ids up to 66 were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_TRUE(error.is_on_all_ranks());
    EXPECT_NE(std::string(error.what()).find("only 12 ids"), std::string::npos) << error.what();
  }
}

TEST(Figures, FollowFromTheSumOfLosses) {
  const train::Evaluation evaluation = {
      .loss_sum = 60 * std::numbers::ln2, .tokens = 10, .correct = 4, .weights = 10};
  const train::TextAmount text = {40, 16, 4};

  EXPECT_DOUBLE_EQ(evaluation.loss(), 6 * std::numbers::ln2);
  EXPECT_DOUBLE_EQ(evaluation.perplexity(), 64);
  EXPECT_DOUBLE_EQ(evaluation.bits_per_byte(text), 1.5);
  EXPECT_DOUBLE_EQ(evaluation.word_perplexity(text), 8);
  EXPECT_DOUBLE_EQ(evaluation.accuracy(), 0.4);
}

}  // namespace
}  // namespace hyperslab
