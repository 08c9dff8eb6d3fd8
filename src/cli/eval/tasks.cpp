// SPDX-License-Identifier: Apache-2.0
#include "tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "../storage_json.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/eval/task_evaluator.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/tasks/records.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::cli {
namespace {

/// The items of all lists, which commas separate.
std::vector<std::string> split(const std::vector<std::string>& lists) {
  std::vector<std::string> items;
  for (const std::string& list : lists) {
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      items.push_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return items;
}

void refuse_other_options(const Arguments& args) {
  for (const char* option : {"data", "stride", "words", "predictions", "logits"}) {
    if (!args.has(option)) continue;
    throw Error(ExitCode::usage,
                fmt::format("--{} does not go with --tasks, which measures on questions", option))
        .on_all_ranks();
  }
}

nlohmann::ordered_json to_json(const comm::World& world, const train::Config& config,
                               const eval::TaskResults& results) {
  nlohmann::ordered_json line;
  line["checkpoint"] = results.checkpoint;
  line["step"] = results.step;
  line["tasks"] = nlohmann::ordered_json::array();
  for (const tasks::Result& result : results.tasks) line["tasks"].push_back(tasks::to_json(result));
  line["endings"] = results.endings;
  line["seconds"] = results.seconds;
  line["endings_per_second"] = static_cast<double>(results.endings) / results.seconds;
  line["ranks"] = world.size();
  line.update(storage_json(config, results.footprint));
  return line;
}

void print(const std::vector<eval::TaskResults>& all) {
  fmt::print("{:>8} {:<20} {:>10} {:<10} {:>10} {:>10}  {}\n", "step", "task", "questions",
             "figure", "value", "stderr", "checkpoint");
  for (const eval::TaskResults& results : all) {
    for (const tasks::Result& result : results.tasks) {
      for (const tasks::Figure& figure : result.figures) {
        fmt::print("{:>8} {:<20} {:>10} {:<10} {:>10.4f} {:>10}  {}\n", results.step, result.task,
                   result.questions, figure.name, figure.value,
                   std::isfinite(figure.standard_error)
                       ? fmt::format("{:.4f}", figure.standard_error)
                       : "-",
                   results.checkpoint);
      }
    }
  }
}

/// The run directory that holds a checkpoint, as `train` lays it out; empty: none does.
std::string run_directory(const std::string& checkpoint) {
  const std::filesystem::path step = io::CheckpointReader(checkpoint).folder();
  const std::filesystem::path folder = std::filesystem::absolute(step).lexically_normal();
  const std::filesystem::path run = folder.parent_path().parent_path();
  std::error_code ignored;
  const bool is_run = folder.parent_path().filename() == "checkpoints" &&
                      std::filesystem::exists(run / "metrics.jsonl", ignored);
  return is_run ? run.string() : "";
}

/// Appends a line; the file stays as it is where that is not possible. A file that may only be read
/// is no reason to lose the results.
void record(const eval::TaskResults& results) {
  const std::string run = run_directory(results.checkpoint);
  if (run.empty()) return;
  const std::string path = run + "/eval_tasks.jsonl";
  try {
    io::append_line(path, tasks::record_line(results.step, results.tasks));
  } catch (const Error& error) {
    log::warn(std::string("the figures are not recorded in the run directory: ") + error.what());
  }
}

}  // namespace

void add_task_options(Arguments& args) {
  args.add()("tasks", po::value<std::vector<std::string>>()->composing(),
             "instead of a text, questions whose endings the model scores: task files, or names of "
             "some in --tasks-folder, separated by commas; prints accuracy with its standard error "
             "(docs/tasks.md)")("tasks-folder",
                                po::value<std::string>()->default_value(tasks::kFolder),
                                "where NAME.jsonl of a task that is given by its name lies");
}

void run_tasks(comm::World& world, const Arguments& args, const EvalSource& source) {
  refuse_other_options(args);
  const std::vector<EvalGroup> groups = eval_groups(world, source);
  const comm::Watchdog watchdog = train::watch(world, groups.front().deck.config);
  train::report_threads(world);
  std::vector<std::string> files;
  comm::agree(world, [&] {
    files = tasks::find_tasks(split(args.list("tasks")), args.get<std::string>("tasks-folder"));
  });
  std::vector<eval::TaskResults> all;
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const EvalGroup& group : groups) {
    eval::TaskEvaluator evaluator(world, group.deck, files);
    for (eval::TaskResults& results : evaluator.measure(group.source.checkpoints)) {
      lines.push_back(to_json(world, group.deck.config, results));
      all.push_back(std::move(results));
    }
  }
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    print(all);
    for (const eval::TaskResults& results : all) record(results);
    if (!args.has("json")) return;
    io::write_text_file(args.get<std::string>("json"),
                        (lines.size() == 1 ? lines[0] : lines).dump(2) + '\n');
  });
}

}  // namespace hyperslab::cli
