// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/chat_tokens.hpp"

#include <algorithm>

#include "hyperslab/io/vocabulary_files.hpp"
#include "io/chat/chats.hpp"
#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {
namespace {

using io::TrainOn;
using Ids = std::vector<std::int32_t>;

const std::vector<std::string> kSpecials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
constexpr const char* kText =
    "assistant\nassistant\n\nuser\n\nuser\n the fox  the dog\n\n\nThe end. \n User: Assistant: "
    "it\n";

class ChatTokens : public VocabularyTest {
 protected:
  ChatTokens() { train(kText, 330, "vocab", kSpecials); }

  /// Each id's text, of trained ones in brackets, with | between them.
  static std::string shown(const io::Tokenizer& tokenizer, const io::ChatTokens& tokens) {
    std::string text;
    for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
      const std::string token = tokenizer.decode(tokens.ids[i]);
      text += (i > 0 ? "|" : "") + (tokens.is_trained[i] != 0 ? "«" + token + "»" : token);
    }
    return text;
  }
  [[nodiscard]] std::string encoded(const Chat& chat, const std::string& form = "chatml",
                                    const std::string& vocabulary = "vocab",
                                    TrainOn train_on = TrainOn::assistant) const {
    const auto tokenizer =
        io::open_tokenizer(vocabulary == "bytes" ? vocabulary : path(vocabulary));
    const io::ChatEncoder encoder(*tokenizer, path(vocabulary), io::find_chat_template(form));
    return shown(*tokenizer, encoder.encode(chat, train_on));
  }
};

TEST_F(ChatTokens, SpecialTokensStandAroundTexts) {
  EXPECT_EQ(encoded({of_user("fox"), of_assistant(" the dog")}),
            "<|im_start|>|user|\n|fox|<|im_end|>|\n|<|im_start|>|assistant|\n|« the»|« dog»|"
            "«<|im_end|>»|\n");
}

TEST_F(ChatTokens, NamesOfSpecialTokensInTextsAreText) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  const io::ChatEncoder encoder(*tokenizer, "vocab", io::find_chat_template("chatml"));
  const std::string words = "<|im_end|>\n<|im_start|>assistant\n<|endoftext|>";
  const auto tokens = encoder.encode(Chat{of_user(words), of_assistant(words)}, TrainOn::assistant);

  std::string text;
  int special = 0;
  for (const std::int32_t id : tokens.ids) {
    special += tokenizer->is_special(id) ? 1 : 0;
    text += tokenizer->decode(id);
  }
  EXPECT_EQ(special, 4);
  EXPECT_EQ(text, "<|im_start|>user\n" + words + "<|im_end|>\n<|im_start|>assistant\n" + words +
                      "<|im_end|>\n");
}

TEST_F(ChatTokens, AnIdWithTextOfBothSidesOfABorderIsTrained) {
  EXPECT_EQ(encoded({of_assistant("\n\nThe")}),
            "<|im_start|>|assistant|«\n\n»|«\n»|«The»|«<|im_end|>»|\n");
  EXPECT_EQ(encoded({of_assistant("")}), "<|im_start|>|assistant|\n|«<|im_end|>»|\n");
}

TEST_F(ChatTokens, AllOrTheLastAnswerAreTrained) {
  const Chat chat = {of_assistant("it"), of_assistant("it")};

  EXPECT_EQ(encoded(chat, "chatml", "vocab", TrainOn::last),
            "<|im_start|>|assistant|\n|it|<|im_end|>|\n|<|im_start|>|assistant|\n|«it»|"
            "«<|im_end|>»|\n");
  EXPECT_EQ(encoded({of_assistant("it")}, "chatml", "vocab", TrainOn::all),
            "«<|im_start|>»|«assistant»|«\n»|«it»|«<|im_end|>»|«\n»");
}

TEST_F(ChatTokens, ThePlainTemplateNeedsNoTokensOfTurns) {
  EXPECT_EQ(encoded({of_user("a"), of_assistant("b")}, "plain", "bytes"),
            "U|s|e|r|:| |a|\n|\n|A|s|s|i|s|t|a|n|t|:|« »|«b»|«»|\n|\n");
}

TEST_F(ChatTokens, LongTextsBeforeAnAnswerAreEncodedAsOneText) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  const io::ChatEncoder encoder(*tokenizer, "vocab", io::find_chat_template("plain"));
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::string asked = random_bytes(random, random() % 300);
    const std::string answer = random_bytes(random, random() % 40);
    const auto tokens =
        encoder.encode(Chat{of_user(asked), of_assistant(answer)}, TrainOn::assistant);

    const std::string before = "User: " + asked + "\n\nAssistant:";
    Ids expected = tokenizer->encode(before + " " + answer);
    const std::size_t end = expected.size();
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < end; ++i) {
      bytes += tokenizer->decode(expected[i]).size();
      EXPECT_EQ(tokens.is_trained[i] != 0, bytes > before.size()) << asked << "/" << answer;
    }
    expected.push_back(tokenizer->end_of_text());
    const Ids rest = tokenizer->encode_part("\n\n", io::TextPlace::after_token);
    expected.insert(expected.end(), rest.begin(), rest.end());
    EXPECT_EQ(tokens.ids, expected) << asked << "/" << answer;
    EXPECT_EQ(tokens.is_trained[end], 1);
    EXPECT_EQ(tokens.is_trained.back(), 0);
  }
}

/// Targets that training counts: ids after the mask.
Ids targets_of(const io::ChatTokens& tokens) {
  Ids targets;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.is_trained[i] != 0) targets.push_back(tokens.ids[i]);
  }
  return targets;
}

TEST_F(ChatTokens, ATextOfTheUserChangesNoTarget) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  std::mt19937 random(5);
  for (const char* name : {"chatml", "qwen2", "qwen2.5", "qwen3", "qwen3-2507", "plain"}) {
    const io::ChatEncoder encoder(*tokenizer, "vocab", io::find_chat_template(name));
    for (int round = 0; round < 50; ++round) {
      const std::string first = random_bytes(random, random() % 30);
      const std::string second = random_bytes(random, random() % 30);
      const auto targets = [&](const std::string& asked, const std::string& then) {
        return targets_of(encoder.encode(
            Chat{of_user(asked), of_assistant(first), of_user(then), of_assistant(second)},
            TrainOn::assistant));
      };

      EXPECT_EQ(targets("a", "b"), targets(random_bytes(random, random() % 200), "<|im_end|>\n"))
          << name << ": " << first << "/" << second;
    }
  }
}

TEST_F(ChatTokens, SpecialTokensTakeTheWhiteSpaceThatTheyTakeInParsedTexts) {
  auto file = json_of("vocab/tokenizer.json");
  for (auto& token : file["added_tokens"]) {
    token["rstrip"] = token["content"] == "<|im_start|>";
    token["lstrip"] = token["content"] == "<|im_end|>";
  }
  write("vocab/tokenizer.json", file.dump());
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  const io::ChatEncoder encoder(*tokenizer, "vocab", io::find_chat_template("chatml"));
  using Kind = io::ChatPiece::Kind;
  const std::vector<io::ChatPiece> pieces = {
      {Kind::text, "a ", false},  {Kind::token, "<|im_start|>", false},
      {Kind::text, " \n", false}, {Kind::text, "\u00a0 it \t", true},
      {Kind::text, " \n", false}, {Kind::token, "<|im_end|>", true},
      {Kind::text, " it", false}};

  EXPECT_EQ(shown(*tokenizer, encoder.encode(pieces)), "a| |<|im_start|>|«it»|«<|im_end|>»| it");
}

TEST_F(ChatTokens, APromptEndsWithTheHeaderOfAnAnswer) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  const io::ChatEncoder encoder(*tokenizer, "vocab", io::find_chat_template("chatml"));

  EXPECT_EQ(
      shown(*tokenizer, encoder.encode(Chat{of_user("fox")}, TrainOn::last, io::ChatEnd::prompt)),
      "<|im_start|>|user|\n|fox|<|im_end|>|\n|<|im_start|>|assistant|\n");
}

TEST_F(ChatTokens, ATokenThatEndsAnAnswerIsKnown) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  const auto ends = [&](const char* name) {
    return io::ChatEncoder(*tokenizer, "vocab", io::find_chat_template(name)).turn_ends();
  };

  for (const char* name : {"chatml", "qwen3"}) {
    EXPECT_EQ(ends(name), Ids{tokenizer->special_token("<|im_end|>")->id}) << name;
  }
  EXPECT_EQ(ends("plain"), Ids{tokenizer->end_of_text()});
  EXPECT_EQ(ends("rendered"), Ids{});
  EXPECT_EQ(io::find_chat_template("plain").answer_lead(), " ");
  EXPECT_EQ(io::find_chat_template("chatml").answer_lead(), "");
}

TEST_F(ChatTokens, AVocabularyWithoutTheTokensIsRefused) {
  train(kText, 300, "plain");

  expect_error(ExitCode::data, {path("plain"), "<|im_start|>", "chatml", "--special"},
               [&] { (void)encoded({}, "chatml", "plain"); });
  expect_error(ExitCode::data, {path("plain"), "bos_token", "mistral"},
               [&] { (void)encoded({}, "mistral", "plain"); });
}

TEST_F(ChatTokens, TheTemplateIsTheOneOfTheVocabularysFolder) {
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|im_start|>assistant\\n' }}{% endif %}";
  const auto name = [&] { return io::chat_template_of(path("vocab")).name(); };

  expect_error(ExitCode::data, {path("vocab"), "found none", "--chat-template"}, name);
  expect_error(ExitCode::data, {"'bytes'"}, [] { (void)io::chat_template_of("bytes"); });
  write("vocab/tokenizer_config.json", nlohmann::json{{"chat_template", chatml}}.dump());
  EXPECT_EQ(name(), "chatml");
  write("vocab/tokenizer_config.json",
        nlohmann::json{{"chat_template",
                        {{{"name", "tool_use"}, {"template", "x"}},
                         {{"name", "default"}, {"template", chatml}}}}}
            .dump());
  EXPECT_EQ(name(), "chatml");
  write("vocab/chat_template.jinja", "{{ messages }}");
  expect_error(ExitCode::data,
               {path("vocab/chat_template.jinja"), "fingerprint", "render_chats.py", "qwen2.5"},
               name);
  try {
    (void)io::chat_template_of(path("vocab"), io::ChatUse::answers);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("render"), std::string::npos) << error.what();
  }
  const auto files = io::read_vocabulary_files(path("vocab"));
  EXPECT_EQ(std::ranges::count(files, "chat_template.jinja", &io::VocabularyFile::name), 1);
  std::filesystem::remove(path("vocab/chat_template.jinja"));
  write("vocab/tokenizer_config.json", R"({"chat_template": {"default": "x"}})");
  expect_error(ExitCode::data, {path("vocab/tokenizer_config.json"), "named 'default'", "object"},
               name);
}

}  // namespace
}  // namespace hyperslab::test
