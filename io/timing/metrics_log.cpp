// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "hyperslab/io/timing.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::ordered_json;

/// Calls number(key, value) for every number that follows from a loss. The keys of training and
/// of validation stand side by side, so that they are found.
template <class Number>
void each_meaning(const LossMeaning& meaning, bool validation, const Number& number) {
  const auto put = [&](const char* training_key, const char* validation_key, double value) {
    number(validation ? validation_key : training_key, value);
  };
  if (const auto* text = std::get_if<TextMetrics>(&meaning)) {
    put("perplexity", "validation_perplexity", text->perplexity);
    put("token_accuracy", "validation_token_accuracy", text->token_accuracy);
    if (text->bits_per_byte) {
      put("bits_per_byte", "validation_bits_per_byte", *text->bits_per_byte);
    }
  } else if (const auto* images = std::get_if<ImageMetrics>(&meaning)) {
    put("top1", "validation_top1", images->top1);
    put("top5", "validation_top5", images->top5);
  } else if (const auto* policy = std::get_if<PolicyMetrics>(&meaning)) {
    number("clipped", policy->clipped);
    if (policy->kl) number("kl", *policy->kl);
  } else if (const auto* taught = std::get_if<AccuracyMetrics>(&meaning)) {
    number("token_accuracy", taught->token_accuracy);
  } else {
    number("preferred", std::get<PreferenceMetrics>(meaning).preferred);
  }
}

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
  each_meaning(line.meaning, false, number);
  if (line.images_per_second > 0) number("images_per_second", line.images_per_second);
  number("wall_seconds", line.wall_seconds);
  number("skipped_steps", line.skipped_steps);
  number("memory_peak_bytes", line.memory_peak_bytes);
  if (line.z_loss) number("z_loss", *line.z_loss);
  if (line.balance) number("balance", *line.balance);
  if (line.load_max) number("load_max", *line.load_max);
  if (line.router_entropy) number("router_entropy", *line.router_entropy);
  if (line.rows_beyond) number("rows_beyond", *line.rows_beyond);
  if (line.router_z) number("router_z", *line.router_z);
  if (line.spike) number("spike", *line.spike);
  if (line.left_out) number("left_out", 1);
  if (!line.validation) return;
  number("validation_loss", line.validation->loss);
  each_meaning(line.validation->meaning, true, number);
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
