// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "hyperslab/core/log.hpp"

namespace hyperslab::train {
namespace {

std::string duration(double seconds) {
  const auto total = std::llround(seconds);
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return fmt::format("{} min {:02} s", total / 60, total % 60);
  return fmt::format("{} h {:02} min", total / 3600, total / 60 % 60);
}

}  // namespace

Progress::Progress(bool enabled, std::int64_t total_steps, std::int64_t log_every)
    : enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) == 1),
      total_steps_(total_steps),
      log_every_(log_every) {}

std::string Progress::text(const io::MetricsLine& line) const {
  const double left = mean_step_seconds_ * static_cast<double>(total_steps_ - line.step);
  return fmt::format(
      "step {}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  utilization {:.1f} % "
      " "
      "{} left",
      line.step, total_steps_, line.loss, line.grad_norm, line.lr, line.tokens_per_second,
      100.0 * line.mfu, duration(left));
}

void Progress::show(const io::MetricsLine& line) {
  if (!enabled_) return;
  mean_step_seconds_ = mean_step_seconds_ == 0 ? line.step_seconds
                                               : 0.9 * mean_step_seconds_ + 0.1 * line.step_seconds;
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", text(line));
    std::fflush(stderr);
    open_ = true;
  } else if (line.step % log_every_ == 0 || line.step == 1 || line.step == total_steps_) {
    log::info(text(line));
  }
  if (line.validation) {
    finish_line();
    log::info(
        fmt::format("step {}/{}  validation loss {:.4f}  perplexity {:.3f}  token accuracy "
                    "{:.2f} %",
                    line.step, total_steps_, line.validation->loss, line.validation->perplexity,
                    100.0 * line.validation->token_accuracy));
  }
}

void Progress::finish_line() {
  if (!open_) return;
  fmt::print(stderr, "\n");
  open_ = false;
}

}  // namespace hyperslab::train
