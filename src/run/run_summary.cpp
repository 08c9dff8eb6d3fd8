// SPDX-License-Identifier: Apache-2.0
#include "run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "hyperslab/core/log.hpp"
#include "hyperslab/plan/units.hpp"
#include "report.hpp"

namespace hyperslab::run {
namespace {

using Words = std::vector<std::string>;

/// True if a word is this option, perhaps cut short as options may be, perhaps with "=value".
bool is_option(std::string_view word, std::string_view option) {
  if (!word.starts_with("--")) return false;
  const std::string_view name = word.substr(2, word.find('=') - 2);
  return name.size() >= 2 && option.starts_with(name);
}

/// True if one of the words sets the key of "key=value".
bool is_set_by(const Words& words, std::string_view setting) {
  const std::string_view key = setting.substr(0, setting.find('=') + 1);
  return !key.empty() &&
         std::ranges::any_of(words, [&](const auto& word) { return word.starts_with(key); });
}

/// "key=value" of a word that is --set, whose value may be the next word; empty if it is not.
std::string setting_at(const Words& words, std::size_t i) {
  if (!is_option(words[i], "set")) return "";
  const std::size_t equals = words[i].find('=');
  if (equals != std::string::npos) return words[i].substr(equals + 1);
  return i + 1 < words.size() ? words[i + 1] : "";
}

/// Settings among the words after the i-th, which win over its own.
Words settings_after(const Words& words, std::size_t i) {
  Words settings;
  for (std::size_t later = i + 1; later < words.size(); ++later) {
    std::string setting = setting_at(words, later);
    if (!setting.empty()) settings.push_back(std::move(setting));
  }
  return settings;
}

std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-=+:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') text += "'\\'";
    text += c;
  }
  return text + "'";
}

/// The command that starts `python3 -m analysis` from here: from the folder that holds it, or with
/// the path to the one that the program was built in.
std::string analysis() {
  namespace fs = std::filesystem;
  const char* const python = "python3 -m analysis";
  std::error_code error;
  if (fs::exists("analysis/__main__.py", error)) return python;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (fs::path folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (!fs::exists(folder / "analysis" / "__main__.py", error)) continue;
    return fmt::format("PYTHONPATH={} {}", quoted(folder.string()), python);
  }
  return python;
}

}  // namespace

std::string shell_line(const Words& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

Words resume_words(const StartCommand& command, const Words& more) {
  Words words = command.launcher;
  words.insert(words.end(), {command.program, "train"});
  for (std::size_t i = 0; i < command.arguments.size(); ++i) {
    const std::string& word = command.arguments[i];
    const bool alone = word.find('=') == std::string::npos;  // its value follows
    const std::string setting = setting_at(command.arguments, i);
    const bool left_out =
        is_option(word, "resume") || is_option(word, "stop-after") ||
        (!setting.empty() &&
         (is_set_by(more, setting) || is_set_by(settings_after(command.arguments, i), setting)));
    if (!left_out) words.push_back(word);
    if (left_out && alone) ++i;
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::optional<RunSummary::Validation> best_validation(const std::string& path) {
  std::optional<RunSummary::Validation> best;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"validation_loss\"") == std::string::npos) continue;
    const auto value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object() || !value.value("step", nlohmann::json()).is_number_integer()) continue;
    const auto loss = value.find("validation_loss");
    if (loss == value.end() || !loss->is_number()) continue;  // not-a-number is null
    if (!best || loss->get<double>() < best->loss) best = {loss->get<double>(), value["step"]};
  }
  return best;
}

std::string text_of(const RunSummary& s) {
  std::string text = s.step < s.last_step
                         ? fmt::format("stopped{} after step {} of {}",
                                       s.on_request ? " on request" : "", s.step, s.last_step)
                         : fmt::format("finished after step {}", s.step);
  text += fmt::format(": {} steps in {}", s.step - s.first_step + 1, duration(s.seconds));
  if (s.first_step > 1) text += fmt::format(" ({} with earlier starts)", duration(s.all_seconds));
  text += fmt::format(", {:.0f} {}/s overall; loss of step {} {:.4f}", s.targets / s.seconds,
                      s.of_images ? "images" : "tokens", s.step, s.last_loss);
  if (s.best) {
    text += fmt::format(", best validation loss {:.4f} (step {})", s.best->loss, s.best->step);
  }
  if (s.broken_images > 0) {
    text += fmt::format(", {} of {:.0f} images broken, which did not count", s.broken_images,
                        s.targets);
  }
  if (s.spikes > 0) {
    text +=
        fmt::format(", {} spike{} ({} left out)", s.spikes, s.spikes == 1 ? "" : "s", s.left_out);
  }
  const std::string least = plan::bytes_text(static_cast<double>(s.least_memory));
  const std::string most = plan::bytes_text(static_cast<double>(s.most_memory));
  return text + fmt::format(", peak memory {}{} a rank", least == most ? "" : least + " to ", most);
}

void log_next_commands(const Start& start, const RunData& data, std::int64_t step) {
  const StartCommand& command = start.options.command;
  if (command.program.empty()) return;
  const bool is_at_end = step == data.last_step();
  Words more;
  if (start.config.checkpoint.resume.from != io::ResumeFrom::newest) more = {"--resume", "auto"};
  if (is_at_end) {
    const bool by_steps = start.config.train.steps > 0;
    more.insert(more.end(), {"--set", by_steps ? fmt::format("train.steps={}", 2 * data.last_step())
                                               : fmt::format("train.epochs={}",
                                                             2 * start.config.train.epochs)});
  }
  if (!io::list_checkpoints(start.checkpoints).empty()) {
    log::info(fmt::format("  {}  {}", is_at_end ? "train on" : "resume  ",
                          shell_line(resume_words(command, more))));
    if (data.has_tokenizer()) {
      log::info("  generate  " + shell_line({command.program, "generate", "--checkpoint",
                                             start.checkpoints, "--prompt", "The"}));
    }
  }
  const std::string& run = start.config.run.directory;
  for (const char* const plot : {"learning", "time"}) {
    log::info(fmt::format("  plot      {} {}", analysis(),
                          shell_line({plot, run, "--output", run + "/report"})));
  }
}

}  // namespace hyperslab::run
