// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "checkpoint/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/timing.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// The step of a line; nothing where the line is torn.
std::optional<std::int64_t> step_of(const std::string& line) {
  const json value = json::parse(line, nullptr, false);
  if (!value.is_object()) return std::nullopt;
  const auto step = value.find("step");
  if (step == value.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
}

/// The lines of steps before `first_step`, each with its end of line.
std::string kept_lines(const std::string& path, const std::string& text, std::int64_t first_step) {
  std::istringstream lines(text);
  std::string kept;
  std::string line;
  int torn = 0;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    const auto step = step_of(line);
    if (!step) ++torn;
    if (step && *step < first_step) kept += line + "\n";
  }
  if (torn > 0) log::warn(fmt::format("{}: {} torn line(s) removed", path, torn));
  return kept;
}

ordered_json json_of(const MetricsLine& line) {
  ordered_json value;
  value["step"] = line.step;
  value["loss"] = line.loss;
  value["grad_norm"] = line.grad_norm;
  value["lr"] = line.lr;
  value["tokens"] = line.tokens;
  value["step_seconds"] = line.step_seconds;
  value["tokens_per_second"] = line.tokens_per_second;
  value["mfu"] = line.mfu;
  value["mfu_full"] = line.mfu_full;
  value["perplexity"] = line.perplexity;
  value["token_accuracy"] = line.token_accuracy;
  value["wall_seconds"] = line.wall_seconds;
  value["skipped_steps"] = line.skipped_steps;
  value["memory_peak_bytes"] = line.memory_peak_bytes;
  if (line.validation) {
    value["validation_loss"] = line.validation->loss;
    value["validation_perplexity"] = line.validation->perplexity;
    value["validation_token_accuracy"] = line.validation->token_accuracy;
    const std::optional<double>& bits = line.validation->bits_per_byte;
    if (bits) value["validation_bits_per_byte"] = *bits;
  }
  return value;
}

}  // namespace

MetricsLog::MetricsLog(const std::string& path, std::int64_t first_step) : path_(path) {
  if (std::filesystem::exists(path)) {
    const std::string text = storage::read_text(path);
    const std::string kept = kept_lines(path, text, first_step);
    if (kept != text) storage::replace_text(path, kept);
  }
  errno = 0;
  out_.open(path, std::ios::app);
  if (!out_) {
    throw Error(ExitCode::storage,
                path + ": opening it to append failed: " + std::generic_category().message(errno));
  }
}

void MetricsLog::append(const MetricsLine& line) {
  errno = 0;
  out_ << json_of(line).dump() << '\n' << std::flush;  // not-a-number and infinity become null
  if (!out_) {
    throw Error(ExitCode::storage,
                path_ + ": writing failed: " + std::generic_category().message(errno));
  }
}

}  // namespace hyperslab::io
