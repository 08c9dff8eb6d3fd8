// SPDX-License-Identifier: Apache-2.0
#include "path_origin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <sstream>
#include <string_view>

namespace hyperslab::cli {
namespace {

constexpr std::array<std::string_view, 4> kPathKeys = {"data.train", "data.validation",
                                                       "data.vocabulary", "train.tasks"};

/// "key=value" of every --set, in order.
std::vector<std::string> settings_in(const std::vector<std::string>& words) {
  constexpr std::string_view kOption = "--set";
  std::vector<std::string> settings;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kOption && i + 1 < words.size()) settings.push_back(words[i + 1]);
    if (words[i].starts_with("--set=")) settings.push_back(words[i].substr(kOption.size() + 1));
  }
  return settings;
}

/// The texts of a list in YAML, or the only text.
std::vector<std::string> texts_in(const std::string& value) {
  constexpr const char* kAround = " []'\"";
  std::vector<std::string> texts;
  std::istringstream in(value);
  for (std::string text; std::getline(in, text, ',');) {
    const std::size_t begin = text.find_first_not_of(kAround);
    if (begin == std::string::npos) continue;
    texts.push_back(text.substr(begin, text.find_last_not_of(kAround) - begin + 1));
  }
  return texts;
}

bool names_path_of(const std::string& setting, const std::string& message) {
  const std::size_t equals = setting.find('=');
  if (equals == std::string::npos) return false;
  const std::string_view key = std::string_view(setting).substr(0, equals);
  if (std::ranges::find(kPathKeys, key) == kPathKeys.end()) return false;
  return std::ranges::any_of(texts_in(setting.substr(equals + 1)), [&](const std::string& path) {
    return message.find(fmt::format("'{}'", path)) != std::string::npos;
  });
}

}  // namespace

std::string origin_of_path(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& setting : std::views::reverse(settings_in(words))) {
    if (names_path_of(setting, message)) {
      return fmt::format("; the path is that of --set {}", setting);
    }
  }
  return "";
}

}  // namespace hyperslab::cli
