// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/completion_request.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace hyperslab::test {
namespace {

using serve::parse_completion_request;
using serve::RequestError;
using Ids = std::vector<std::int32_t>;

class CompletionRequest : public ::testing::Test {
 protected:
  [[nodiscard]] serve::CompletionRequest parse(const std::string& json) const {
    return parse_completion_request(model_, json);
  }
  [[nodiscard]] std::string refused_field(const std::string& json) const {
    try {
      (void)parse(json);
    } catch (const RequestError& error) {
      EXPECT_EQ(error.status(), 400) << error.what();
      return error.field();
    }
    return "taken";
  }

  std::unique_ptr<io::Tokenizer> tokenizer_ = io::open_tokenizer("bytes");
  std::unique_ptr<io::Tokenizer> parsing_ = io::open_tokenizer("bytes", io::SpecialTokens::parsed);
  serve::ServedModel model_ = {"m", tokenizer_.get(),       parsing_.get(), 64,
                               260, tokenizer_->text_ends()};
};

TEST_F(CompletionRequest, AKeyThatStandsTwiceIsRefused) {
  EXPECT_THROW((void)parse(R"({"prompt": "a", "n": 1, "prompt": "b"})"), RequestError);
}

TEST_F(CompletionRequest, HasTheDefaultsOfTheInterface) {
  const auto request = parse(R"({"prompt": "a"})");

  EXPECT_EQ(request.prompts, generate::Prompts({{97}}));
  EXPECT_EQ(request.sampling.max_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.sampling.stop_tokens, std::vector{256});
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.echo || request.stream || request.stream_usage);
  EXPECT_FALSE(request.logprobs.has_value());
  EXPECT_NE(request.sampling.seed, parse(R"({"prompt": "a"})").sampling.seed);
}

TEST_F(CompletionRequest, TakesAllKindsOfPrompts) {
  EXPECT_EQ(parse(R"({"prompt": ["a", "bc"]})").prompts, generate::Prompts({{97}, {98, 99}}));
  EXPECT_EQ(parse(R"({"prompt": [7, 8]})").prompts, generate::Prompts({{7, 8}}));
  EXPECT_EQ(parse(R"({"prompt": [[7], [8, 259]]})").prompts, generate::Prompts({{7}, {8, 259}}));
  EXPECT_EQ(refused_field(R"({"prompt": ["a", [7]]})"), "prompt");
}

TEST_F(CompletionRequest, EveryEndOfTheModelEndsATextUnlessTheyAreIgnored) {
  const std::vector<std::int64_t> deck = {7, 256};
  model_.ends = model_.ends.with(deck);

  EXPECT_EQ(parse(R"({"prompt": "a"})").sampling.stop_tokens, (std::vector{256, 7}));
  EXPECT_TRUE(parse(R"({"prompt": "a", "ignore_eos": true})").sampling.stop_tokens.empty());
}

TEST_F(CompletionRequest, AnEmptyPromptBeginsADocument) {
  EXPECT_EQ(parse(R"({"prompt": ""})").prompts, generate::Prompts({{256}}));
  EXPECT_EQ(parse(R"({"prompt": [[]]})").prompts, generate::Prompts({{256}}));
}

TEST_F(CompletionRequest, NamesOfSpecialTokensStandForTheirIds) {
  EXPECT_EQ(serve::encode_text(model_, "a<|endoftext|>b<|endoftext|>", {}),
            Ids({97, 256, 98, 256}));
  EXPECT_EQ(serve::encode_text(model_, "<|endoftext", {}).size(), 11U);
  EXPECT_EQ(parse(R"({"prompt": "<|endoftext|>"})").prompts, generate::Prompts({{256}}));
  EXPECT_EQ(parse(R"({"prompt": "<|endoftext|>", "parse_special": false})").prompts.front().size(),
            13U);
  EXPECT_EQ(refused_field(R"({"prompt": "a", "parse_special": "no"})"), "parse_special");
}

TEST_F(CompletionRequest, NamesOfSpecialTokensAreTextWhereTheyCannotBeParsed) {
  model_.parsing = nullptr;

  EXPECT_EQ(parse(R"({"prompt": "<|endoftext|>"})").prompts.front().size(), 13U);
  EXPECT_EQ(refused_field(R"({"prompt": "a", "parse_special": false})"), "taken");
  EXPECT_EQ(refused_field(R"({"prompt": "a", "parse_special": true})"), "parse_special");
}

TEST_F(CompletionRequest, TheLastTokenNeedsNoRoomInTheContext) {
  const std::string prompt(60, 'a');
  EXPECT_EQ(refused_field(R"({"max_tokens": 5, "prompt": ")" + prompt + "\"}"), "taken");
  EXPECT_EQ(refused_field(R"({"max_tokens": 6, "prompt": ")" + prompt + "\"}"), "prompt");
  EXPECT_EQ(refused_field(R"({"max_tokens": 0, "prompt": ")" + prompt + "aaaaa\"}"), "prompt");
}

TEST_F(CompletionRequest, APromptBeyondTheContextIsNamedAsSuch) {
  const std::string prompt(65, 'a');
  try {
    (void)parse(R"({"max_tokens": 0, "prompt": ")" + prompt + "\"}");
    FAIL();
  } catch (const RequestError& error) {
    EXPECT_STREQ(error.what(), "prompt: 65 tokens, of which this model's context takes 64");
  }
}

TEST_F(CompletionRequest, ATextThatCannotFitByItsBytesIsNotEncoded) {
  EXPECT_EQ(serve::longest_token(*tokenizer_), std::ssize(std::string("<|endoftext|>")));
  model_.token_bytes = 2;
  const auto prompt = [](std::size_t bytes) {
    return R"({"max_tokens": 0, "prompt": ")" + std::string(bytes, 'a') + "\"}";
  };
  EXPECT_EQ(refused_field(prompt(64)), "taken");
  for (const auto& [bytes, text] :
       {std::pair(128, "prompt: 128 tokens"), {129, "prompt: 129 bytes"}}) {
    try {
      (void)parse(prompt(static_cast<std::size_t>(bytes)));
      FAIL();
    } catch (const RequestError& error) {
      EXPECT_EQ(std::string(error.what()).rfind(text, 0), 0U) << error.what();
    }
  }
}

TEST_F(CompletionRequest, AStopTextHasABoundedLength) {
  EXPECT_EQ(refused_field(R"({"prompt": "a", "stop": ")" + std::string(1024, 'x') + "\"}"),
            "taken");
  EXPECT_EQ(refused_field(R"({"prompt": "a", "stop": ")" + std::string(1025, 'x') + "\"}"), "stop");
}

TEST_F(CompletionRequest, IsBoundedByWhatItsAnswerWouldTake) {
  nlohmann::json request = {{"prompt", nlohmann::json(1000, std::string(60, 'a'))},
                            {"max_tokens", 4}};
  EXPECT_EQ(refused_field(request.dump()), "taken");
  request["logprobs"] = 20;
  EXPECT_EQ(refused_field(request.dump()), "prompt");
}

TEST_F(CompletionRequest, FieldsThatChangeNothingAreTaken) {
  EXPECT_EQ(
      refused_field(R"({"prompt": "a", "suffix": "", "presence_penalty": 0.0, "logit_bias": {},
                              "user": "me", "best_of": 1, "stop": null})"),
      "taken");
}

TEST_F(CompletionRequest, AnotherModelIsNotFound) {
  try {
    (void)parse(R"({"prompt": "a", "model": "other"})");
    FAIL();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.status(), 404);
  }
}

TEST_F(CompletionRequest, AWholeNumberBeyond64BitsIsRefused) {
  EXPECT_EQ(refused_field(R"({"prompt": "a", "seed": 9223372036854775808})"), "seed");
  EXPECT_EQ(refused_field(R"({"prompt": [18446744073709551615]})"), "prompt");
}

}  // namespace
}  // namespace hyperslab::test
