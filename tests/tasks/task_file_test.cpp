// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/task_file.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "support/files.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::tasks {
namespace {

constexpr const char* kChoice = R"({"task": "t", "kind": "multiple_choice"})";
constexpr const char* kCompletion = R"({"task": "t", "kind": "completion"})";

class TaskFile : public testing::Test {
 protected:
  test::TempFolder folder;
  std::string write(const std::string& text, const std::string& name = "task.jsonl") {
    const std::string path = folder.path() + "/" + name;
    test::write_file(path, text);
    return path;
  }
  Task read(const std::string& text) { return read_task(write(text)); }
  void refuse(const std::string& text, std::initializer_list<std::string> parts) {
    test::expect_error(ExitCode::data, parts, [&] { (void)read(text); });
  }
  /// The second line of a task of multiple choice.
  void refuse_question(const std::string& line, const std::string& why) {
    refuse(std::string(kChoice) + "\n" + line + "\n", {"task.jsonl:2: ", why});
  }
};

TEST_F(TaskFile, HasQuestionsWithEndingsOrContexts) {
  const Task task = read(
      "{\"task\": \"t-1\", \"kind\": \"multiple_choice\", \"metric\": \"acc_norm\", "
      "\"delimiter\": \"\"}\n\n"
      "{\"id\": 7, \"context\": \"A\", \"endings\": [\"b\", \"\\u00e4c\"], \"label\": 1}\r\n"
      "{\"contexts\": [\"x\", \"\", \"z\"], \"ending\": \"e\", \"label\": 0}");

  EXPECT_EQ(task.name, "t-1");
  EXPECT_EQ(task.kind, Kind::multiple_choice);
  EXPECT_EQ(task.metric, "acc_norm");
  EXPECT_EQ(task.delimiter, "");
  ASSERT_EQ(task.questions.size(), 2U);
  const Question& first = task.questions[0];
  EXPECT_EQ(first.id, "7");
  EXPECT_EQ(first.line, 3);
  EXPECT_EQ(first.label, 1);
  ASSERT_EQ(first.choices.size(), 2U);
  EXPECT_EQ(first.choices[1].context, "A");
  EXPECT_EQ(first.choices[1].ending,
            "\xC3\xA4"
            "c");
  const Question& second = task.questions[1];
  ASSERT_EQ(second.choices.size(), 3U);
  EXPECT_EQ(second.choices[2].context, "z");
  EXPECT_EQ(second.choices[2].ending, "e");
}

TEST_F(TaskFile, ACompletionHasOneEndingAndDefaults) {
  const Task task =
      read(std::string(kCompletion) + "\n{\"context\": \"a b\", \"ending\": \"c\"}\n");

  EXPECT_EQ(task.kind, Kind::completion);
  EXPECT_EQ(task.metric, "acc");
  EXPECT_EQ(task.delimiter, " ");
  ASSERT_EQ(task.questions.size(), 1U);
  EXPECT_EQ(task.questions[0].choices.size(), 1U);
}

TEST_F(TaskFile, WhatIsNoTaskIsRefusedWithItsLine) {
  refuse("", {"task.jsonl: is empty"});
  refuse(kChoice, {"task.jsonl: has no questions"});
  refuse("[1]\n", {"task.jsonl:1: expected an object"});
  refuse("{\"task\": \"t\"", {"task.jsonl:1: is no JSON in UTF-8 from byte 13"});
  refuse("{\"task\": \"t\"}", {"task.jsonl:1: ", "'kind' is missing"});
  refuse(R"({"task": "a/b", "kind": "completion"})", {"task.jsonl:1: 'task' must be a name"});
  refuse(R"({"task": "t", "kind": "essay"})", {"task.jsonl:1: 'kind' must be", "found 'essay'"});
  refuse(R"({"task": "t", "kind": "completion", "metric": "acc_norm"})",
         {"task.jsonl:1: 'metric' must be one of acc, perplexity"});
  refuse(R"({"task": "t", "kind": "completion", "shots": 5})", {"unknown key 'shots'"});
}

TEST_F(TaskFile, WhatIsNoQuestionIsRefusedWithItsLine) {
  refuse_question(R"({"context": "a", "endings": ["b", "c"], "label": 2})",
                  "'label' must be 0 to 1, found 2");
  refuse_question(R"({"context": "a", "endings": ["b", "c"], "label": -1})", "'label' must be");
  refuse_question(R"({"context": "a", "endings": ["b", "c"], "label": 1e99})", "'label' must be");
  refuse_question(R"({"context": "a", "endings": ["b", "c"], "label": 1e999})", "too large");
  refuse_question(R"({"context": "a", "endings": ["b", "c"]})", "'label' is missing");
  refuse_question(R"({"context": "a", "endings": [], "label": 0})", "must have 2 to 64 texts");
  refuse_question(R"({"context": "a", "endings": ["b"], "label": 0})", "must have 2 to 64 texts");
  refuse_question(R"({"context": "a", "endings": ["b", ""], "label": 0})", "an ending is empty");
  refuse_question(R"({"context": "a", "endings": ["b", 1], "label": 0})", "must be a text");
  refuse_question(R"({"context": "a", "endings": "bc", "label": 0})", "must be a list of texts");
  refuse_question(R"({"context": 3, "endings": ["b", "c"], "label": 0})", "must be a text");
  refuse_question(R"({"context": "a", "endings": ["b", "c"], "label": 0, "gold": 1})",
                  "unknown key 'gold'");
  refuse_question(R"({"contexts": ["a", "b"], "endings": ["c"], "ending": "c", "label": 0})",
                  "unknown key 'endings'");
  std::string many = R"({"context": "a", "label": 0, "endings": ["b")";
  for (int i = 0; i < 64; ++i) many += ", \"b\"";
  refuse_question(many + "]}", "found 65");
}

TEST_F(TaskFile, HostileLinesAreRefusedBeforeTheyAreParsed) {
  refuse_question("{\"context\": \"\xFF\"}", "is no JSON in UTF-8");
  refuse_question(std::string(100000, '['), "nested too deep");
  refuse_question(R"({"context": "a", "context": "b", "endings": ["c"], "label": 0})",
                  "'context' stands twice");
  refuse_question("{\"context\": \"" + std::string(kMostLineBytes, 'x') + "\"}",
                  "expected at most 1048576");
  test::expect_error(ExitCode::storage, {"nowhere.jsonl"},
                     [] { (void)read_task("/nowhere/nowhere.jsonl"); });
}

TEST_F(TaskFile, NamesAreFoundInTheFolder) {
  const std::string path = write("", "arc.jsonl");

  EXPECT_EQ(find_tasks({"arc"}, folder.path()), std::vector<std::string>{path});
  EXPECT_EQ(find_tasks({path}, "/elsewhere"), std::vector<std::string>{path});
  const auto expect_usage = [&](std::initializer_list<std::string> parts,
                                const std::vector<std::string>& names) {
    test::expect_error(ExitCode::usage, parts, [&] { (void)find_tasks(names, folder.path()); });
  };
  expect_usage({"the task 'piqa'", "piqa.jsonl is not there"}, {"piqa"});
  expect_usage({"'arc' is given twice"}, {"arc", "arc"});
  expect_usage({"is not there"}, {""});
  expect_usage({"no tasks"}, {});
}

}  // namespace
}  // namespace hyperslab::tasks
