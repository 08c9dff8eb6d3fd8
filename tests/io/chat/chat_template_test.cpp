// SPDX-License-Identifier: Apache-2.0
// chat_golden.json: conversations as the families' own templates write them, by Jinja2
// (make_chat_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "io/chat/chats.hpp"
#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

using io::TrainOn;

/// The rendering of a conversation with its trained parts in brackets.
std::string marked(const std::string& name, const Chat& chat,
                   TrainOn train_on = TrainOn::assistant) {
  return text_of(io::find_chat_template(name).render(chat, train_on), true);
}

TEST(ChatTemplates, WriteWhatTheTemplatesOfTheFamiliesWrite) {
  std::ifstream file(HYPERSLAB_CHAT_GOLDEN_FILE);
  const auto golden = nlohmann::json::parse(file);
  std::set<std::string> names = {"plain", "rendered"};
  for (const auto& one : golden["chats"]) {
    const auto form = io::find_chat_template(one["template"].get<std::string>());
    names.insert(std::string(form.name()));
    const Chat chat = io::read_chat(nlohmann::json{{"messages", one["messages"]}}.dump());
    const std::string text = one["text"];
    const std::string prompt = one["prompt"];

    for (const TrainOn train_on : {TrainOn::last, TrainOn::assistant, TrainOn::all}) {
      EXPECT_EQ(text_of(form.render(chat, train_on)), text) << one;
      EXPECT_EQ(text_of(form.render(chat, train_on, io::ChatEnd::prompt)), prompt) << one;
    }
  }
  const auto all = io::chat_template_names();
  EXPECT_EQ(names, std::set<std::string>(all.begin(), all.end()));
}

TEST(ChatTemplates, TrainOnTheWordsOfTheAssistantAndTheTokenThatEndsThem) {
  const Chat chat = {of_user("Hi"), of_assistant("Hello"), of_user("Bye"), of_assistant("")};
  const std::string im =
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello<|im_end|>»\n"
      "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";

  EXPECT_EQ(marked("chatml", chat), im + "«<|im_end|>»\n");
  EXPECT_EQ(marked("qwen3-2507", chat), im + "«<|im_end|>»\n");
  EXPECT_EQ(marked("qwen3", chat), im + "«<think>\n\n</think>\n\n<|im_end|>»\n");
  EXPECT_EQ(marked("llama2", chat),
            "<bos>[INST] Hi [/INST]« Hello <eos>»<bos>[INST] Bye [/INST]«  <eos>»");
  EXPECT_EQ(marked("llama3", chat),
            "<bos><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n«Hello<|eot_id|>»"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n«<|eot_id|>»");
  EXPECT_EQ(marked("mistral-v3", chat),
            "<bos>[INST] Hi[/INST]« Hello<eos>»[INST] Bye[/INST]« <eos>»");
  EXPECT_EQ(marked("mistral-nemo", chat),
            "<bos>[INST]Hi[/INST]«Hello<eos>»[INST]Bye[/INST]«<eos>»");
  EXPECT_EQ(
      marked("gemma", chat),
      "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n«Hello<end_of_turn>»\n"
      "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n«<end_of_turn>»\n");
  EXPECT_EQ(marked("phi3", chat),
            "<|user|>\nHi<|end|>\n<|assistant|>\n«Hello<|end|>»\n"
            "<|user|>\nBye<|end|>\n<|assistant|>\n«<|end|>»\n<eos>");
  EXPECT_EQ(marked("plain", chat),
            "User: Hi\n\nAssistant:« Hello<eos>»\n\nUser: Bye\n\nAssistant:« <eos>»\n\n");
}

TEST(ChatTemplates, TrainOnTheLastAnswerOrOnAll) {
  const Chat chat = {of_user("a"), of_assistant("b"), of_user("c"), of_assistant("d"),
                     of_user("e")};

  EXPECT_EQ(marked("plain", chat, TrainOn::last),
            "User: a\n\nAssistant: b<eos>\n\nUser: c\n\nAssistant:« d<eos>»\n\nUser: e\n\n");
  EXPECT_EQ(marked("phi3", {of_user("a"), of_assistant("b")}, TrainOn::all),
            "«<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<eos>»");
  EXPECT_EQ(marked("plain", {of_user("a")}), "User: a\n\n");
  EXPECT_EQ(marked("plain", {of_user("a")}, TrainOn::last), "User: a\n\n");
}

TEST(ChatTemplates, CallsOfToolsAreTheWordsOfTheAssistant) {
  Chat chat = {of_user("a"), of_assistant("b"), {.role = io::ChatRole::tool, .text = "c"}};
  chat[1].calls = {{.name = "f", .arguments = "{}"}};

  EXPECT_EQ(marked("qwen3-2507", chat),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b\n<tool_call>\n"
            "{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>»\n"
            "<|im_start|>user\n<tool_response>\nc\n</tool_response><|im_end|>\n");
}

TEST(ChatTemplates, NamesOfTokensInTextsAreText) {
  const auto pieces = io::find_chat_template("chatml").render(
      Chat{of_user("<|im_end|>"), of_assistant("<|im_start|>")}, TrainOn::assistant);

  std::vector<std::string> texts;
  for (const auto& piece : pieces) {
    if (piece.kind == io::ChatPiece::Kind::text) texts.push_back(piece.text);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"user\n<|im_end|>", "\n", "assistant\n",
                                             "<|im_start|>", "\n"}));
}

TEST(ChatTemplates, RefuseConversationsThatTheFamilyRefuses) {
  const auto refuse = [](const std::string& name, const Chat& chat,
                         std::initializer_list<std::string> parts) {
    expect_error(ExitCode::data, parts, [&] { (void)marked(name, chat); });
  };
  Chat calls = {of_user("a"), of_assistant("b")};
  calls[1].calls = {{.name = "f", .arguments = "{}", .arguments_as_text = true}};

  refuse("gemma", {of_system("s"), of_user("a")}, {"message 1 (system)", "gemma", "first message"});
  refuse("mistral", {of_user("a"), of_user("b")}, {"message 2 (user)", "one of the assistant"});
  refuse("llama2", {of_assistant("a")}, {"message 1 (assistant)", "one of the user"});
  refuse("gemma3", {of_system("s")}, {"message 1 (system)", "message of the user after it"});
  refuse("llama2", {of_user("a"), of_assistant("b"), of_system("c")}, {"message 3 (system)"});
  refuse("phi3", {{.role = io::ChatRole::tool, .text = "x"}},
         {"message 1 (tool)", "answers of tools"});
  refuse("chatml", calls, {"message 2 (assistant)", "tool_calls"});
  refuse("qwen2.5", calls, {"message 2 (assistant)", "give them as an object"});
  expect_error(ExitCode::usage, {"vicuna", "chatml", "plain"},
               [] { (void)io::find_chat_template("vicuna"); });
}

TEST(ChatTemplates, FingerprintsAreThoseOfThePublishedTemplates) {
  std::ifstream file(HYPERSLAB_CHAT_GOLDEN_FILE);
  const auto golden = nlohmann::json::parse(file);

  for (const auto& [name, prints] : golden["fingerprints"].items()) {
    for (const std::string print : prints) {
      const auto form = io::known_chat_template(std::stoull(print, nullptr, 16));
      EXPECT_EQ(form ? std::string(form->name()) : "REFUSED", name) << print;
    }
  }
}

TEST(ChatTemplates, FingerprintsSeeNoDifferenceBetweenLineBreaks) {
  const auto print = io::fingerprint_of_template("{{ 'a\n' }}\nb");

  EXPECT_EQ(io::fingerprint_of_template("{{ 'a\\n' }}\nb\n"), print);
  EXPECT_EQ(io::fingerprint_of_template("{{ 'a\r\n' }}\r\nb\r\n"), print);
  EXPECT_NE(io::fingerprint_of_template("{{ 'a\n' }}\nb\n\n"), print);
  EXPECT_NE(io::fingerprint_of_template("{{ 'a' }}\nb"), print);
  EXPECT_NE(io::fingerprint_of_template(" {{ 'a\n' }}\nb"), print);
  EXPECT_EQ(io::fingerprint_of_template(""), 0xCBF29CE484222325U);
}

}  // namespace
}  // namespace hyperslab::test
