// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/chat_request.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hyperslab/io/chat_tokens.hpp"

namespace hyperslab::test {
namespace {

using Fields = nlohmann::json;
using serve::RequestError;

class ChatRequest : public ::testing::Test {
 protected:
  ChatRequest() { model_.chats = &plain_; }

  /// A conversation of pairs of role and content.
  static Fields chat(const std::vector<std::pair<std::string, std::string>>& messages) {
    Fields list = Fields::array();
    for (const auto& [role, content] : messages) {
      list.push_back({{"role", role}, {"content", content}});
    }
    return {{"messages", list}};
  }
  [[nodiscard]] serve::CompletionRequest parse(const Fields& request) const {
    return parse_chat_request(model_, request.dump());
  }
  /// The question "a" with another field.
  [[nodiscard]] serve::CompletionRequest with(const std::string& field, const Fields& value) const {
    Fields request = chat({{"user", "a"}});
    request[field] = value;
    return parse(request);
  }
  [[nodiscard]] std::string refused_body(const std::string& body) const {
    try {
      (void)parse_chat_request(model_, body);
    } catch (const RequestError& error) {
      EXPECT_EQ(error.status(), 400) << error.what();
      return error.field() + "|" + error.what();
    }
    return "taken";
  }
  [[nodiscard]] std::string refused(const Fields& request) const {
    return refused_body(request.dump());
  }
  [[nodiscard]] std::string refused_with(const std::string& field, const Fields& value) const {
    Fields request = chat({{"user", "a"}});
    request[field] = value;
    return refused(request);
  }
  [[nodiscard]] std::string prompt_of(const Fields& request) const {
    std::string text;
    const auto prompts = parse(request).prompts;
    for (const std::int32_t id : prompts.at(0)) text += tokenizer_->decode(id);
    return text;
  }

  std::unique_ptr<io::Tokenizer> tokenizer_ = io::open_tokenizer("bytes");
  io::ChatEncoder plain_ = {*tokenizer_, "bytes", io::find_chat_template("plain")};
  serve::ServedModel model_ = {"m", tokenizer_.get(),        nullptr, 128,
                               260, tokenizer_->text_ends(), 13};
};

TEST_F(ChatRequest, ThePromptIsTheConversationWithTheHeaderOfAnAnswer) {
  EXPECT_EQ(prompt_of(chat({{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}})),
            "System: s\n\nUser: a\n\nAssistant: b\n\nUser: c\n\nAssistant:");
  const Fields parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(prompt_of({{"messages", {{{"role", "user"}, {"content", parts}}}}}),
            "User: ab\n\nAssistant:");
}

TEST_F(ChatRequest, NamesOfSpecialTokensAreText) {
  const auto ids = parse(chat({{"user", "<|endoftext|>"}})).prompts.at(0);

  EXPECT_EQ(std::ranges::count(ids, 256), 0);
  EXPECT_EQ(prompt_of(chat({{"user", "<|endoftext|>"}})), "User: <|endoftext|>\n\nAssistant:");
}

TEST_F(ChatRequest, AnAnswerHasTheRestOfTheContextUnlessARequestSaysHowMuch) {
  EXPECT_EQ(parse(chat({{"user", "a"}})).sampling.max_tokens, 128 + 1 - 19);
  EXPECT_EQ(with("max_tokens", 3).sampling.max_tokens, 3);
  EXPECT_EQ(with("max_completion_tokens", 4).sampling.max_tokens, 4);
  Fields both = chat({{"user", "a"}});
  both.update({{"max_tokens", 3}, {"max_completion_tokens", 3}});
  EXPECT_EQ(parse(both).sampling.max_tokens, 3);
  both["max_tokens"] = 4;
  EXPECT_EQ(refused(both).rfind("max_tokens|", 0), 0U);
  model_.context = serve::kMostRequestTokens;
  Fields many = chat({{"user", "a"}});
  many.update({{"n", 4}, {"logprobs", true}, {"top_logprobs", 3}});
  EXPECT_EQ(parse(many).sampling.max_tokens, serve::kMostRequestTokens / 16 - 19);
}

TEST_F(ChatRequest, TheEndOfATurnEndsAnAnswerUnlessEndsAreIgnored) {
  model_.ends.ids = {7};

  EXPECT_EQ(parse(chat({{"user", "a"}})).sampling.stop_tokens, (std::vector{7, 256}));
  EXPECT_TRUE(with("ignore_eos", true).sampling.stop_tokens.empty());
  EXPECT_EQ(parse(chat({{"user", "a"}})).lead, " ");
}

TEST_F(ChatRequest, LogProbabilitiesAreAFlagAndANumber) {
  Fields request = chat({{"user", "a"}});
  EXPECT_FALSE(parse(request).logprobs.has_value());
  request["logprobs"] = true;
  EXPECT_EQ(parse(request).logprobs, 0);
  request["top_logprobs"] = 5;
  EXPECT_EQ(parse(request).logprobs, 5);
  request["logprobs"] = false;
  EXPECT_EQ(refused(request).rfind("top_logprobs|", 0), 0U);
  EXPECT_EQ(refused_with("logprobs", 5).rfind("logprobs|", 0), 0U);
}

TEST_F(ChatRequest, SharesTheFieldsOfCompletions) {
  Fields request = chat({{"user", "a"}});
  request.update({{"model", "m"},
                  {"temperature", 0.5},
                  {"top_p", 0.9},
                  {"seed", 7},
                  {"stop", {"x", "y"}},
                  {"n", 2},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}}},
                  {"tools", Fields::array()},
                  {"tool_choice", "none"},
                  {"response_format", {{"type", "text"}}},
                  {"presence_penalty", 0},
                  {"user", "me"}});
  const auto parsed = parse(request);

  EXPECT_EQ(parsed.sampling.temperature, 0.5);
  EXPECT_EQ(parsed.sampling.top_p, 0.9);
  EXPECT_EQ(parsed.sampling.seed, 7U);
  EXPECT_EQ(parsed.stops, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(parsed.choices(), 2U);
  EXPECT_TRUE(parsed.stream && parsed.stream_usage);
}

TEST_F(ChatRequest, RefusesByNameWhatIsNotSupported) {
  for (const char* field : {"prompt", "echo", "best_of", "functions", "parse_special"}) {
    EXPECT_EQ(refused_with(field, 1).rfind(std::string(field) + "|there is no field", 0), 0U)
        << refused_with(field, 1);
  }
  EXPECT_NE(refused_with("tools", {{{"type", "function"}}}).find("tools|tools: no chat template"),
            std::string::npos);
  EXPECT_EQ(refused_with("tool_choice", "auto").rfind("tool_choice|", 0), 0U);
  EXPECT_EQ(refused_with("response_format", {{"type", "json_object"}}).rfind("response_format|", 0),
            0U);
}

TEST_F(ChatRequest, RefusesMessagesThatAreNone) {
  const auto refused_for = [&](const Fields& request, const std::string& part) {
    EXPECT_EQ(refused(request).rfind("messages|", 0), 0U) << refused(request);
    EXPECT_NE(refused(request).find(part), std::string::npos) << refused(request);
  };
  refused_for(Fields::object(), "missing");
  refused_for({{"messages", Fields::array()}}, "has no messages");
  refused_for({{"messages", "a"}}, "must hold a list");
  refused_for(chat({{"user", "a"}, {"owner", "b"}}), "message 2: role: expected system");
  refused_for({{"messages", {{{"role", "user"}}}}}, "message 1: content must be a text");
  refused_for({{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
              "parts of the type text");
  refused_for(chat({{"user", std::string(200, 'a')}}), "218 tokens, of which this model's context");
  refused_for(chat({{"user", std::string(2000, 'a')}}), "2018 bytes");
  EXPECT_EQ(refused_body(R"({"messages": [{"role": "user", "content": ")"
                         "\xff"
                         R"("}]})"),
            "|the body is no valid JSON");
  EXPECT_NE(refused_body(std::string(100, '[')).find("nested more than 64 deep"),
            std::string::npos);
}

TEST_F(ChatRequest, TheTemplateRefusesConversationsOfItsOwn) {
  Fields request = chat({{"user", "a"}, {"assistant", "b"}});
  request["messages"][1]["tool_calls"] = {{{"function", {{"name", "f"}, {"arguments", "{}"}}}}};

  EXPECT_EQ(refused(request),
            "messages|messages: message 2 (assistant): the template plain has no form here for "
            "tool_calls");
}

TEST_F(ChatRequest, AModelWithoutATemplateSaysWhatToDo) {
  model_.chats = nullptr;
  model_.no_chats = "name one with --chat-template";

  EXPECT_EQ(refused(chat({{"user", "a"}})), "|name one with --chat-template");
}

TEST_F(ChatRequest, AnotherModelIsNotFound) {
  try {
    (void)with("model", "other");
    FAIL();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.status(), 404);
  }
}

}  // namespace
}  // namespace hyperslab::test
