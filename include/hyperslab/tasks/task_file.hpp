// SPDX-License-Identifier: Apache-2.0
// Questions whose answers a model scores, and the files that hold them (docs/tasks.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::tasks {

enum class Kind : std::uint8_t {
  multiple_choice,  ///< the likeliest of several endings is the answer
  completion,       ///< the model must find the one ending itself, token by token
};

/// A text and its possible endings.
struct Choice {
  std::string context;
  std::string ending;  ///< without the task's delimiter
};

struct Question {
  std::string id;               ///< empty: the line names none
  std::int64_t line = 0;        ///< line of the file, counted from 1
  std::vector<Choice> choices;  ///< one, if the kind is completion
  int label = 0;                ///< the right choice
};

struct Task {
  std::string name;
  std::string path;
  Kind kind = Kind::multiple_choice;
  std::string metric;     ///< the figure that stands for the task; see figures.hpp
  std::string delimiter;  ///< between a context and an ending
  std::vector<Question> questions;
};

/// Bounds of a task file, which may come from anywhere.
inline constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;
inline constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMostChoices = 64;

/// Reads a task file. Throws Error(data) with file, line and the expectation for every fault:
/// unknown and missing keys, wrong types, a label that is no ending, no UTF-8, a line of more
/// than kMostLineBytes; Error(storage) if it cannot be read.
[[nodiscard]] Task read_task(const std::string& path);

/// Folder of task files that are given by their names.
inline constexpr const char* kFolder = "data/tasks";

/// The paths of `names`: a path if it has a slash or ends with .jsonl, else NAME.jsonl in `folder`.
/// Throws Error(usage) for a file that is not there, a name that is given twice, or none.
[[nodiscard]] std::vector<std::string> find_tasks(const std::vector<std::string>& names,
                                                  const std::string& folder);

/// Figures that a task of a kind has, in the order of tables.
[[nodiscard]] const std::vector<std::string>& metrics_of(Kind kind);

}  // namespace hyperslab::tasks
