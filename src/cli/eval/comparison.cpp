// SPDX-License-Identifier: Apache-2.0
#include "comparison.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace hyperslab::cli {
namespace {

/// Such as "bf16", "int4 groups of 64" or "nf4, adapters of rank 8".
std::string storage_text(const train::Config& config) {
  if (config.adapter) {
    return fmt::format("{}, adapters of rank {}", train::frozen_format_text(config),
                       config.adapter.rank);
  }
  const std::string quantized = train::quantization_text(config);
  return quantized == "none" ? std::string(name_of(config.precision.compute)) : quantized;
}

double rate_of(const Measured& row) { return row.result.evaluation.tokens / row.result.seconds; }

std::string bits_per_byte(const Measured& row) {
  if (!row.text) return "-";
  const double bits = row.result.evaluation.bits_per_byte(*row.text);
  return std::isfinite(bits) ? fmt::format("{:.4f}", bits) : "-";
}

/// The figures of text, or of images, with their differences to the first row's.
void print_quality(const Measured& row, const Measured& first) {
  const train::Evaluation& mine = row.result.evaluation;
  const train::Evaluation& its = first.result.evaluation;
  fmt::print("{:>10.6f} {:>+10.6f} ", mine.loss(), mine.loss() - its.loss());
  if (row.config.model.is_of_images()) {
    fmt::print("{:>9.2f} {:>+8.2f} {:>9.2f} ", 100 * mine.accuracy(),
               100 * (mine.accuracy() - its.accuracy()), 100 * mine.accuracy5());
    return;
  }
  fmt::print("{:>12.4f} {:>+8.2f} % {:>10} ", mine.perplexity(),
             100 * (mine.perplexity() / its.perplexity() - 1), bits_per_byte(row));
}

void print_comparison_header(bool images) {
  fmt::print("{:<32} {:>8} {:>10} {:>10} ", "stored as", "step", "loss", "change");
  if (images) {
    fmt::print("{:>9} {:>8} {:>9} ", "top-1 %", "change", "top-5 %");
  } else {
    fmt::print("{:>12} {:>10} {:>10} ", "perplexity", "change", "bits/byte");
  }
  fmt::print("{:>12} {:>6} {:>12} {:>6}  {}\n", "model bytes", "x",
             images ? "images/s" : "tokens/s", "x", "checkpoint");
}

}  // namespace

void print_comparison(const std::vector<Measured>& rows) {
  const Measured& first = rows.front();
  print_comparison_header(first.config.model.is_of_images());
  for (const Measured& row : rows) {
    fmt::print("{:<32} {:>8} ", storage_text(row.config), row.result.step);
    print_quality(row, first);
    const auto bytes = static_cast<double>(row.result.footprint.parameters);
    fmt::print("{:>12.0f} {:>6.3f} {:>12.0f} {:>6.2f}  {}\n", bytes,
               bytes / static_cast<double>(first.result.footprint.parameters), rate_of(row),
               rate_of(row) / rate_of(first), row.result.checkpoint);
  }
}

}  // namespace hyperslab::cli
