// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/completion_json.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace hyperslab::test {
namespace {

using serve::AnswerPiece;
using serve::AnswerToken;
using serve::Finish;

class CompletionJson : public ::testing::Test {
 protected:
  std::unique_ptr<io::Tokenizer> tokenizer_ = io::open_tokenizer("bytes");
  CompletionJson() {
    request_.prompts = {{1}, {2}};
    request_.logprobs = 1;
  }

  serve::CompletionRequest request_;
};

TEST_F(CompletionJson, PutsPiecesTogetherByChoice) {
  serve::AnswerJson json({"id", "m", 5}, *tokenizer_, request_);
  json.add({1, "b", {{98, 0, {}}}, Finish::none});
  json.add({0, "a", {}, Finish::stop});
  json.add(
      {1, "c", {{99, 1, generate::TokenLogProbabilities{-0.5, {{7, -0.25}}}}}, Finish::length});

  const auto choices = json.whole({3, 4})["choices"];
  EXPECT_EQ(choices[0]["text"], "a");
  EXPECT_EQ(choices[0]["finish_reason"], "stop");
  EXPECT_EQ(choices[1]["text"], "bc");
  EXPECT_EQ(choices[1]["finish_reason"], "length");
  EXPECT_EQ(choices[1]["logprobs"].dump(),
            R"({"tokens":["b","c"],"token_logprobs":[null,-0.5],)"
            R"("top_logprobs":[null,{"\u0007":-0.25,"c":-0.5}],"text_offset":[0,1]})");
}

TEST_F(CompletionJson, NamesBytesThatAreNoTextAndBoundsLogProbabilities) {
  const double none = -std::numeric_limits<double>::infinity();
  serve::AnswerJson json({"id", "m", 5}, *tokenizer_, request_);
  const AnswerPiece piece = {
      0, "", {{0xC3, 0, generate::TokenLogProbabilities{none, {{256, -0.25}}}}}, Finish::none};

  const auto logprobs = json.chunks(piece).front()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].dump(), R"(["bytes:\\xc3"])");
  EXPECT_EQ(logprobs["token_logprobs"].dump(), "[-9999.0]");
  EXPECT_EQ(logprobs["top_logprobs"][0].dump(), R"({"<|endoftext|>":-0.25,"bytes:\\xc3":-9999.0})");
}

TEST_F(CompletionJson, CountsTokens) {
  const serve::AnswerJson json({"id", "m", 5}, *tokenizer_, request_);
  EXPECT_EQ(json.usage_chunk({3, 4})["usage"].dump(),
            R"({"prompt_tokens":3,"completion_tokens":4,"total_tokens":7})");
  EXPECT_EQ(json.usage_chunk({3, 4, {.drafted = 5, .accepted = 2}})["usage"].dump(),
            R"({"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
            R"("completion_tokens_details":{"accepted_prediction_tokens":2,)"
            R"("rejected_prediction_tokens":3}})");
}

AnswerPiece piece_of(std::string text, Finish finish) { return {0, std::move(text), {}, finish}; }

TEST_F(CompletionJson, AChatIsAMessageWithItsLogProbabilities) {
  serve::AnswerJson json({"id", "m", 5}, *tokenizer_, request_, serve::chat_format());
  const double none = -std::numeric_limits<double>::infinity();
  json.add({1,
            "b",
            {{0xC3, 0, generate::TokenLogProbabilities{-0.5, {{98, -0.25}, {256, none}}}}},
            Finish::stop});

  const auto answer = json.whole({3, 4});
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["usage"]["total_tokens"], 7);
  EXPECT_EQ(answer["choices"][0]["message"].dump(), R"({"role":"assistant","content":""})");
  EXPECT_EQ(answer["choices"][1]["message"].dump(), R"({"role":"assistant","content":"b"})");
  EXPECT_EQ(answer["choices"][1]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][1]["logprobs"].dump(),
            "{\"content\":[{\"token\":\"\uFFFD\",\"logprob\":-0.5,\"bytes\":[195],"
            "\"top_logprobs\":[{\"token\":\"b\",\"logprob\":-0.25,\"bytes\":[98]},"
            "{\"token\":\"<|endoftext|>\",\"logprob\":-9999.0,\"bytes\":"
            "[60,124,101,110,100,111,102,116,101,120,116,124,62]}]}]}");
}

TEST_F(CompletionJson, AStreamedChatBeginsWithARoleAndEndsWithAReason) {
  request_.logprobs.reset();
  request_.stream = true;
  serve::AnswerJson json({"id", "m", 5}, *tokenizer_, request_, serve::chat_format());
  const auto choices = [&](const AnswerPiece& piece) {
    std::string all;
    for (const auto& chunk : json.chunks(piece)) {
      EXPECT_EQ(chunk["object"], "chat.completion.chunk");
      all += chunk["choices"][0]["delta"].dump() + chunk["choices"][0]["finish_reason"].dump();
    }
    return all;
  };

  EXPECT_EQ(choices(piece_of("a", Finish::none)),
            R"({"role":"assistant","content":""}null{"content":"a"}null)");
  EXPECT_EQ(choices(piece_of("", Finish::none)), "");
  EXPECT_EQ(choices({1, "", {}, Finish::length}),
            R"({"role":"assistant","content":""}null{}"length")");
  EXPECT_EQ(choices(piece_of("b", Finish::stop)), R"({"content":"b"}null{}"stop")");
}

}  // namespace
}  // namespace hyperslab::test
