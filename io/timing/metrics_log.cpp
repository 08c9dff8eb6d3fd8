// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "hyperslab/io/timing.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::ordered_json;

/// Calls number(key, value) for every number of a line.
template <class Number>
void each_number(const MetricsLine& line, const Number& number) {
  number("loss", line.loss);
  number("grad_norm", line.grad_norm);
  number("lr", line.lr);
  number("tokens", line.tokens);
  number("step_seconds", line.step_seconds);
  number("tokens_per_second", line.tokens_per_second);
  number("mfu", line.mfu);
  number("mfu_full", line.mfu_full);
  number("perplexity", line.perplexity);
  number("token_accuracy", line.token_accuracy);
  number("wall_seconds", line.wall_seconds);
  number("skipped_steps", line.skipped_steps);
  number("memory_peak_bytes", line.memory_peak_bytes);
  if (line.spike) number("spike", *line.spike);
  if (line.left_out) number("left_out", 1);
  if (!line.validation) return;
  number("validation_loss", line.validation->loss);
  number("validation_perplexity", line.validation->perplexity);
  number("validation_token_accuracy", line.validation->token_accuracy);
  const std::optional<double>& bits = line.validation->bits_per_byte;
  if (bits) number("validation_bits_per_byte", *bits);
}

}  // namespace

std::vector<std::pair<std::string_view, double>> scalars_of(const MetricsLine& line) {
  std::vector<std::pair<std::string_view, double>> scalars;
  each_number(line, [&](std::string_view key, auto value) {
    scalars.emplace_back(key, static_cast<double>(value));
  });
  return scalars;
}

void MetricsLog::append(const MetricsLine& line) {
  ordered_json value = {{"step", line.step}};
  each_number(line, [&](const char* key, auto number) { value[key] = number; });
  lines_.append(value.dump());  // not-a-number and infinity become null
}

}  // namespace hyperslab::io
