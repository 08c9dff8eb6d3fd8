// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "hyperslab/io/timing.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::ordered_json;

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

void MetricsLog::append(const MetricsLine& line) {
  lines_.append(json_of(line).dump());  // not-a-number and infinity become null
}

}  // namespace hyperslab::io
