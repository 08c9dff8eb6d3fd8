// SPDX-License-Identifier: Apache-2.0
#include "about.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "../command.hpp"
#include "hyperslab/comm/time_limit.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/deck/reference.hpp"
#include "library_versions.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::array<std::string_view, 7> kQuestions = {
    "--help", "--version", "--keys", "--rules", "--completion", "--faults", "-h"};

std::string overview() {
  std::string text =
      "hyperslab trains transformers on one core or on a cluster of GPUs.\n\n"
      "usage: [mpirun -np N] hyperslab COMMAND [arguments]; hyperslab COMMAND --help explains.\n\n";
  for (const Command& command : commands()) {
    text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  }
  text +=
      "\n  --keys [SECTION|KEY]   every key of a deck: values, default, meaning\n"
      "  --rules [SECTION]      what must hold between keys\n"
      "                         (both with --markdown: as tables)\n"
      "  --completion bash|zsh  a script for the shell: source <(hyperslab --completion bash)\n"
      "  --faults               what HYPERSLAB_FAULT can make fail, for tests\n"
      "  --version              of this program, its compiler and its libraries\n";
  return text;
}

/// "--keys=model --markdown" as {"--keys", "model", "--markdown"}.
std::vector<std::string> without_equals(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words) {
    const auto equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    out.push_back(word.substr(0, equals));
    if (equals != std::string::npos) out.push_back(word.substr(equals + 1));
  }
  return out;
}

/// The section and the format that --keys or --rules asks for.
struct Table {
  std::string section;
  bool markdown = false;
};

Table table_of(const std::vector<std::string>& words) {
  Table table;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--markdown") {
      table.markdown = true;
    } else if (!word.starts_with('-') && table.section.empty()) {
      table.section = word;
    } else {
      throw Error(ExitCode::usage, fmt::format("{} takes a section and --markdown, found '{}'",
                                               words.front(), word));
    }
  }
  return table;
}

std::string answer_to(const std::vector<std::string>& words) {
  const std::string& question = words.front();
  if (question == "--version") return versions();
  if (question == "--completion") {
    if (words.size() == 2) return completion_script(words[1]);
    throw Error(ExitCode::usage, "--completion takes a shell, bash or zsh");
  }
  if (question == "--faults") return fault::description();
  if (question == "--keys" || question == "--rules") {
    const Table table = table_of(words);
    if (question == "--keys") {
      return table.markdown ? deck::keys_markdown(table.section) : deck::keys_text(table.section);
    }
    return table.markdown ? deck::rules_table(table.section) : deck::rules_text(table.section);
  }
  return overview();
}

/// Alone, a process is the first.
bool is_first_rank() { return comm::launcher_rank().value_or(0) == 0; }

}  // namespace

std::optional<ExitCode> answer(const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  std::vector<std::string> plain = without_equals(words);
  if (plain.front() == "help") plain.front() = "--help";
  if (std::ranges::find(kQuestions, plain.front()) == kQuestions.end()) return std::nullopt;
  try {
    const std::string text = answer_to(plain);
    if (is_first_rank()) fmt::print("{}", text);
  } catch (const Error&) {
    // A launcher that sees another rank fail may end the first one before it has said why.
    if (is_first_rank()) throw;
  }
  return ExitCode::ok;
}

std::string unknown_command(const std::vector<std::string>& words) {
  if (words.empty()) return "which command?\n\n" + overview();
  std::vector<std::string_view> known(kQuestions.begin(), kQuestions.end());
  for (const Command& command : commands()) known.push_back(command.name);
  const auto near = deck::nearest_word(words.front(), known);
  const bool option = words.front().starts_with('-');
  const auto text =
      fmt::format("there is no {} '{}'", option ? "option" : "command", printable(words.front()));
  if (near.empty()) return text + "\n\n" + overview();
  return fmt::format("{}; did you mean '{}'? hyperslab --help lists all\n", text, near);
}

}  // namespace hyperslab::cli
