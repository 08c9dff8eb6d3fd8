// SPDX-License-Identifier: Apache-2.0
#include "prompt_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_keys.hpp"

namespace hyperslab::cli {
namespace {

[[noreturn]] void refuse_file(const std::string& path, const std::string& found) {
  throw Error(ExitCode::data,
              fmt::format("prompt file '{}': expected a readable file or pipe, found: {}; "
                          "correct --prompt-file",
                          path, found));
}

/// All of a file or of what is written into a pipe. A device such as /dev/zero never ends.
std::string read_all(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30U;
  std::error_code unknown;
  const auto status = std::filesystem::status(path, unknown);
  if (std::filesystem::is_block_file(status)) refuse_file(path, "a block device");
  if (std::filesystem::is_fifo(status)) {
    log::info(fmt::format("prompt file '{}' is a pipe: reading until all who write there close it",
                          path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse_file(path, std::strerror(errno));
  std::string text;
  std::string part(std::size_t{1} << 20U, '\0');
  while (text.size() <= kMostBytes) {
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    text.append(part, 0, static_cast<std::size_t>(file.gcount()));
    if (file.eof()) return text;
    if (!file) refuse_file(path, std::strerror(errno));
  }
  refuse_file(path, "more than 1 GiB");
}

std::vector<std::string> read_lines(const std::string& path) {
  std::istringstream text(read_all(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::vector<std::string> plain_prompts(const std::vector<std::string>& lines) {
  const bool by_blank_lines = std::ranges::find(lines, "") != lines.end();
  std::vector<std::string> prompts;
  bool open = false;
  for (const std::string& line : lines) {
    if (open && by_blank_lines && !line.empty()) {
      prompts.back() += '\n' + line;
    } else if (!line.empty()) {
      prompts.push_back(line);
    }
    open = !line.empty();
  }
  return prompts;
}

void add_json_prompt(const std::string& line, NamedPrompts& prompts) {
  const auto refuse = [](const std::string& text) { throw Error(ExitCode::data, text); };
  if (io::is_too_deep(line)) refuse("its JSON is nested too deeply");
  if (const auto key = io::repeated_key(line)) {
    refuse(
        fmt::format("the key '{}' stands twice", printable(std::string_view(*key).substr(0, 64))));
  }
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) refuse("expected an object of JSON in UTF-8");
  for (const auto& [key, value] : object.items()) {
    if (key == "prompt" || key == "id") continue;
    refuse(fmt::format("there is no key '{}' in prompts; leave it out",
                       printable(std::string_view(key).substr(0, 64))));
  }
  const auto prompt = object.find("prompt");
  if (prompt == object.end() || !prompt->is_string()) refuse("expected \"prompt\" with a text");
  prompts.texts.push_back(prompt->get<std::string>());
  prompts.ids.push_back(object.value("id", nlohmann::json()));
}

NamedPrompts json_prompts(const std::string& path, const std::vector<std::string>& lines) {
  NamedPrompts prompts;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    try {
      add_json_prompt(lines[i], prompts);
    } catch (const Error& error) {
      throw Error(ExitCode::data,
                  fmt::format("prompt file '{}', line {}: {}", path, i + 1, error.what()));
    }
  }
  const auto is_null = [](const nlohmann::json& id) { return id.is_null(); };
  if (std::ranges::all_of(prompts.ids, is_null)) prompts.ids.clear();
  return prompts;
}

}  // namespace

NamedPrompts read_prompt_file(const std::string& path) {
  const std::vector<std::string> lines = read_lines(path);
  NamedPrompts prompts =
      path.ends_with(".jsonl") ? json_prompts(path, lines) : NamedPrompts{plain_prompts(lines), {}};
  if (prompts.texts.empty()) {
    throw Error(
        ExitCode::data,
        fmt::format("prompt file '{}': expected prompts, found none; write one a line", path));
  }
  return prompts;
}

}  // namespace hyperslab::cli
