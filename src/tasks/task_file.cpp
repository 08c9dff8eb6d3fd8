// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/task_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_keys.hpp"
#include "hyperslab/io/text_file.hpp"

namespace hyperslab::tasks {
namespace {

using nlohmann::json;

/// Why a line is none of a task file; read_task() adds where.
[[noreturn]] void refuse(const std::string& why) { throw Error(ExitCode::data, why); }

void require_known_keys(const json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) == known.end()) {
      refuse(fmt::format("unknown key '{:.40}', expected {}", key, fmt::join(known, ", ")));
    }
  }
}

const json& at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) refuse(fmt::format("the key '{}' is missing", key));
  return *found;
}

std::string text_of(const json& value, const char* key) {
  if (!value.is_string()) {
    refuse(fmt::format("'{}' must be a text, found {}", key, value.type_name()));
  }
  return value.get<std::string>();
}

/// A text in every place, or a list of them.
std::vector<std::string> texts_of(const json& list, const char* key) {
  if (!list.is_array()) {
    refuse(fmt::format("'{}' must be a list of texts, found {}", key, list.type_name()));
  }
  if (list.size() < 2 || list.size() > kMostChoices) {
    refuse(fmt::format("'{}' must have 2 to {} texts, found {}", key, kMostChoices, list.size()));
  }
  std::vector<std::string> texts;
  for (const json& text : list) texts.push_back(text_of(text, key));
  return texts;
}

std::string ending_of(std::string ending) {
  if (ending.empty()) refuse("an ending is empty");
  return ending;
}

/// Endings of one context, or contexts of one ending (Winogrande).
std::vector<Choice> choices_of(const json& line) {
  std::vector<Choice> choices;
  if (line.contains("contexts")) {
    require_known_keys(line, {"id", "contexts", "ending", "label"});
    const std::string ending = ending_of(text_of(at(line, "ending"), "ending"));
    for (std::string& context : texts_of(line["contexts"], "contexts")) {
      choices.push_back({std::move(context), ending});
    }
    return choices;
  }
  require_known_keys(line, {"id", "context", "endings", "label"});
  const std::string context = text_of(at(line, "context"), "context");
  for (std::string& ending : texts_of(at(line, "endings"), "endings")) {
    choices.push_back({context, ending_of(std::move(ending))});
  }
  return choices;
}

int label_of(const json& line, std::size_t choices) {
  const json& label = at(line, "label");
  const auto count = static_cast<std::int64_t>(choices);
  const bool is_number = label.is_number_unsigned();
  if (!is_number || label.get<std::uint64_t>() >= choices) {
    refuse(fmt::format("'label' must be 0 to {}, found {}", count - 1,
                       is_number ? label.dump() : label.type_name()));
  }
  return label.get<int>();
}

std::string id_of(const json& line) {
  const auto found = line.find("id");
  if (found == line.end()) return {};
  return found->is_number_integer() ? found->dump() : text_of(*found, "id");
}

Question question_of(const json& line, Kind kind) {
  Question question;
  question.id = id_of(line);
  if (kind == Kind::completion) {
    require_known_keys(line, {"id", "context", "ending"});
    question.choices = {{text_of(at(line, "context"), "context"),
                         ending_of(text_of(at(line, "ending"), "ending"))}};
    return question;
  }
  question.choices = choices_of(line);
  question.label = label_of(line, question.choices.size());
  return question;
}

Kind kind_of(const std::string& name) {
  if (name == "multiple_choice") return Kind::multiple_choice;
  if (name == "completion") return Kind::completion;
  refuse(fmt::format("'kind' must be multiple_choice or completion, found '{:.40}'", name));
}

/// Names stand in tables, in keys of metrics.jsonl and in file names.
void require_name(const std::string& name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  if (name.empty() || name.size() > 64 || !std::ranges::all_of(name, is_plain)) {
    refuse("'task' must be a name of 1 to 64 letters, digits, '_', '-' and '.'");
  }
}

Task header_of(const json& line) {
  require_known_keys(line, {"task", "kind", "metric", "delimiter"});
  Task task;
  task.name = text_of(at(line, "task"), "task");
  require_name(task.name);
  task.kind = kind_of(text_of(at(line, "kind"), "kind"));
  const auto& known = metrics_of(task.kind);
  task.metric = line.contains("metric") ? text_of(line["metric"], "metric") : known.front();
  if (std::ranges::find(known, task.metric) == known.end()) {
    refuse(fmt::format("'metric' must be one of {}, found '{:.40}'", fmt::join(known, ", "),
                       task.metric));
  }
  task.delimiter = line.contains("delimiter") ? text_of(line["delimiter"], "delimiter") : " ";
  return task;
}

json parsed(std::string_view line) {
  if (line.size() > kMostLineBytes) {
    refuse(fmt::format("has {} bytes, expected at most {}", line.size(), kMostLineBytes));
  }
  if (io::is_too_deep(line)) refuse("its JSON is nested too deep");
  if (const auto key = io::repeated_key(line)) {
    refuse(fmt::format("the key '{:.40}' stands twice", *key));
  }
  try {
    json object = json::parse(line);
    if (!object.is_object()) refuse("expected an object of JSON");
    return object;
  } catch (const json::parse_error& error) {  // whose text may be as long as the line
    refuse(fmt::format("is no JSON in UTF-8 from byte {} on", error.byte));
  } catch (const json::exception&) {
    refuse("holds a number that is too large");
  }
}

/// Calls body(number, line) for the lines that are not empty.
template <class Body>
void each_line(std::string_view text, Body&& body) {
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    const std::string_view line = text.substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) body(number, line);
    begin = end + 1;
  }
}

}  // namespace

const std::vector<std::string>& metrics_of(Kind kind) {
  static const std::vector<std::string> choice = {"acc", "acc_norm", "acc_bytes", "acc_token"};
  static const std::vector<std::string> completion = {"acc", "perplexity"};
  return kind == Kind::completion ? completion : choice;
}

Task read_task(const std::string& path) {
  const std::string text = io::read_text_file(path, kMostFileBytes);
  Task task;
  each_line(text, [&](std::int64_t number, std::string_view line) {
    try {
      const json object = parsed(line);
      if (task.name.empty()) {
        task = header_of(object);
      } else {
        task.questions.push_back(question_of(object, task.kind));
        task.questions.back().line = number;
      }
    } catch (const Error& error) {
      throw Error(ExitCode::data, fmt::format("{}:{}: {}", path, number, error.what()));
    }
  });
  if (task.name.empty()) {
    throw Error(ExitCode::data, path + ": is empty, expected a line with the task's name and kind");
  }
  if (task.questions.empty()) throw Error(ExitCode::data, path + ": has no questions");
  task.path = path;
  return task;
}

std::vector<std::string> find_tasks(const std::vector<std::string>& names,
                                    const std::string& folder) {
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    const bool is_path = name.find('/') != std::string::npos || name.ends_with(".jsonl");
    const std::string path =
        is_path ? name : (std::filesystem::path(folder) / (name + ".jsonl")).string();
    std::error_code ignored;
    if (name.empty() || !std::filesystem::exists(path, ignored)) {
      throw Error(ExitCode::usage,
                  fmt::format("the task '{}': {} is not there; jobs/data/tasks.py writes the files "
                              "of known tasks",
                              name, path));
    }
    if (!seen.insert(path).second) {
      throw Error(ExitCode::usage, fmt::format("the task '{}' is given twice", name));
    }
    paths.push_back(path);
  }
  if (paths.empty()) throw Error(ExitCode::usage, "no tasks are given");
  return paths;
}

}  // namespace hyperslab::tasks
