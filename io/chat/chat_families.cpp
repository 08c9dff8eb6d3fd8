// SPDX-License-Identifier: Apache-2.0
// The table of templates. Each row says what the template in the family's tokenizer_config.json
// makes of messages; tests compare them with renderings by Jinja2.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "chat/chat_family.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/chat.hpp"

namespace hyperslab::io {
namespace {

constexpr ChatForm kImSystem = {.begin = "<|im_start|>system\n", .end = "<|im_end|>", .rest = "\n"};
constexpr ChatForm kImUser = {.begin = "<|im_start|>user\n", .end = "<|im_end|>", .rest = "\n"};
constexpr ChatForm kImAssistant = {
    .begin = "<|im_start|>assistant\n", .end = "<|im_end|>", .rest = "\n"};
constexpr ChatForm kImTool = {.begin = "<|im_start|>tool\n", .end = "<|im_end|>", .rest = "\n"};
constexpr std::string_view kImPrompt = "<|im_start|>assistant\n";

constexpr ChatFamily im_family(std::string_view name, ToolForm tools,
                               std::optional<std::string_view> default_system = {}) {
  return {.name = name,
          .tokens = {"<|im_start|>", "<|im_end|>"},
          .system = kImSystem,
          .later_system = kImSystem,
          .user = kImUser,
          .assistant = kImAssistant,
          .tool = kImTool,
          .prompt = kImPrompt,
          .default_system = default_system,
          .tools = tools};
}

constexpr ChatFamily qwen3() {
  ChatFamily family = im_family("qwen3", ToolForm::hermes_texts);
  family.thinks = true;
  return family;
}

constexpr ChatFamily kLlama2 = {
    .name = "llama2",
    .system = {.begin = "<<SYS>>\n", .end = "\n<</SYS>>\n\n"},
    .user = {.begin = "{bos}[INST] ", .end = " [/INST]"},
    .assistant = {.lead = " ", .end = " {eos}"},
    .system_place = SystemPlace::first_user,
    .alternates = true,
    .trim = ChatTrim::joined,
};

constexpr ChatForm kHeaderSystem = {.begin = "<|start_header_id|>system<|end_header_id|>\n\n",
                                    .end = "<|eot_id|>"};
constexpr ChatFamily kLlama3 = {
    .name = "llama3",
    .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
    .start = kBos,
    .system = kHeaderSystem,
    .later_system = kHeaderSystem,
    .user = {.begin = "<|start_header_id|>user<|end_header_id|>\n\n", .end = "<|eot_id|>"},
    .assistant = {.begin = "<|start_header_id|>assistant<|end_header_id|>\n\n",
                  .end = "<|eot_id|>"},
    .tool = {.begin = "<|start_header_id|>tool<|end_header_id|>\n\n", .end = "<|eot_id|>"},
    .prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n",
    .trim = ChatTrim::each,
    .tools = ToolForm::message,
};

/// Llama 3.1 and 3.3: two dates stand before the system's text, which is always there.
constexpr ChatFamily llama31() {
  ChatFamily family = kLlama3;
  family.name = "llama3.1";
  family.system.begin =
      "<|start_header_id|>system<|end_header_id|>\n\n"
      "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  family.default_system = "";
  family.tools = ToolForm::refused;
  return family;
}

constexpr ChatFamily kMistral = {
    .name = "mistral",
    .start = kBos,
    .user = {.begin = "[INST] ", .end = " [/INST]"},
    .assistant = {.end = kEos},
    .system_place = SystemPlace::nowhere,
    .alternates = true,
};

constexpr ChatFamily kMistralV1 = {
    .name = "mistral-v1",
    .start = kBos,
    .system = {.end = "\n\n"},
    .user = {.begin = " [INST] ", .end = " [/INST]"},
    .assistant = {.lead = " ", .end = kEos},
    .system_place = SystemPlace::first_user,
    .alternates = true,
};

constexpr ChatFamily kMistralV3 = {
    .name = "mistral-v3",
    .optional_tokens = {"[INST]", "[/INST]"},
    .start = kBos,
    .user = {.begin = "[INST] ", .end = "[/INST]"},
    .assistant = {.lead = " ", .end = kEos},
    .system_place = SystemPlace::nowhere,
    .alternates = true,
    .trim = ChatTrim::answer,
};

constexpr ChatFamily kMistralNemo = {
    .name = "mistral-nemo",
    .optional_tokens = {"[INST]", "[/INST]"},
    .start = kBos,
    .user = {.begin = "[INST]", .end = "[/INST]"},
    .assistant = {.end = kEos},
    .system_place = SystemPlace::nowhere,
    .alternates = true,
};

constexpr ChatFamily kGemma = {
    .name = "gemma",
    .tokens = {"<start_of_turn>", "<end_of_turn>"},
    .start = kBos,
    .user = {.begin = "<start_of_turn>user\n", .end = "<end_of_turn>", .rest = "\n"},
    .assistant = {.begin = "<start_of_turn>model\n", .end = "<end_of_turn>", .rest = "\n"},
    .prompt = "<start_of_turn>model\n",
    .system_place = SystemPlace::nowhere,
    .alternates = true,
    .trim = ChatTrim::each,
};

constexpr ChatFamily gemma3() {
  ChatFamily family = kGemma;
  family.name = "gemma3";
  family.system = {.end = "\n\n"};
  family.system_place = SystemPlace::first_user;
  return family;
}

constexpr ChatForm kPhiSystem = {.begin = "<|system|>\n", .end = "<|end|>", .rest = "\n"};
constexpr ChatFamily phi(std::string_view name, bool drops_empty_system) {
  return {.name = name,
          .tokens = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"},
          .system = kPhiSystem,
          .later_system = kPhiSystem,
          .user = {.begin = "<|user|>\n", .end = "<|end|>", .rest = "\n"},
          .assistant = {.begin = "<|assistant|>\n", .end = "<|end|>", .rest = "\n"},
          .prompt = "<|assistant|>\n",
          .finish = kEos,
          .drops_empty_system = drops_empty_system};
}

/// Our own, for vocabularies without tokens for turns.
constexpr ChatFamily kPlain = {
    .name = "plain",
    .system = {.begin = "System: ", .end = "\n\n"},
    .later_system = {.begin = "System: ", .end = "\n\n"},
    .user = {.begin = "User: ", .end = "\n\n"},
    .assistant = {.begin = "Assistant:", .lead = " ", .end = kEos, .rest = "\n\n"},
    .tool = {.begin = "Tool: ", .end = "\n\n"},
    .prompt = "Assistant:",
    .tools = ToolForm::message,
};

/// Renderings of another program.
constexpr ChatFamily kRendered = {.name = "rendered", .is_rendered = true};

constexpr std::array kFamilies = {
    im_family("chatml", ToolForm::message),
    im_family("qwen2", ToolForm::message, "You are a helpful assistant."),
    im_family("qwen2.5", ToolForm::hermes,
              "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    qwen3(),
    im_family("qwen3-2507", ToolForm::hermes_texts),
    kLlama2,
    kLlama3,
    llama31(),
    kMistral,
    kMistralV1,
    kMistralV3,
    kMistralNemo,
    kGemma,
    gemma3(),
    phi("phi3", false),
    phi("phi3.5", true),
    kPlain,
    kRendered,
};

}  // namespace

std::span<const ChatFamily> chat_families() { return kFamilies; }

std::vector<std::string_view> chat_template_names(ChatUse use) {
  std::vector<std::string_view> names;
  for (const ChatFamily& family : kFamilies) {
    if (use == ChatUse::rows || !family.is_rendered) names.push_back(family.name);
  }
  return names;
}

ChatTemplate find_chat_template(std::string_view name) {
  const auto found = std::ranges::find(kFamilies, name, &ChatFamily::name);
  if (found != kFamilies.end()) return ChatTemplate(*found);
  throw Error(
      ExitCode::usage,
      fmt::format("--chat-template '{}': expected one of {}, found another name; correct it", name,
                  fmt::join(chat_template_names(), ", ")));
}

}  // namespace hyperslab::io
