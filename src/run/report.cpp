// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "hyperslab/core/log.hpp"

namespace hyperslab::run {
namespace {

/// The terminal on which our stderr ends: stderr itself, or, if mpirun on this host passes it on
/// through a pipe, mpirun's. Empty: none.
std::string terminal() {
  std::array<char, 256> path{};
  if (isatty(STDERR_FILENO) == 1) {
    return ttyname_r(STDERR_FILENO, path.data(), path.size()) == 0 ? path.data() : "/dev/tty";
  }
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return {};
  const std::string link = fmt::format("/proc/{}/fd/2", getppid());
  const ssize_t length = readlink(link.c_str(), path.data(), path.size() - 1);
  const std::string target(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return target.starts_with("/dev/pts/") || target.starts_with("/dev/tty") ? target : "";
}

/// Columns of the terminal, 80 if it does not say; 0 without one.
int terminal_columns() {
  const std::string path = terminal();
  if (path.empty()) return 0;
  winsize size{};
  const int file = open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC);
  const bool known = file >= 0 && ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  if (file >= 0) close(file);
  return known ? size.ws_col : 80;
}

std::string meaning_text(const io::LossMeaning& meaning) {
  if (const auto* images = std::get_if<io::ImageMetrics>(&meaning)) {
    return fmt::format("top-1 {:.2f} %  top-5 {:.2f} %", 100.0 * images->top1,
                       100.0 * images->top5);
  }
  if (const auto* policy = std::get_if<io::PolicyMetrics>(&meaning)) {
    return fmt::format("clipped {:.2f} %{}", 100.0 * policy->clipped,
                       policy->kl ? fmt::format("  kl {:.4f}", *policy->kl) : "");
  }
  if (const auto* pairs = std::get_if<io::PreferenceMetrics>(&meaning)) {
    return fmt::format("preferred {:.2f} %", 100.0 * pairs->preferred);
  }
  if (const auto* taught = std::get_if<io::AccuracyMetrics>(&meaning)) {
    return fmt::format("token accuracy {:.2f} %", 100.0 * taught->token_accuracy);
  }
  const auto& text = std::get<io::TextMetrics>(meaning);
  return fmt::format(
      "perplexity {:.3f}  token accuracy {:.2f} %{}", text.perplexity, 100.0 * text.token_accuracy,
      text.bits_per_byte ? fmt::format("  bits per byte {:.4f}", *text.bits_per_byte) : "");
}

}  // namespace

std::string duration(double seconds) {
  const auto total = std::llround(seconds);
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return fmt::format("{} min {:02} s", total / 60, total % 60);
  return fmt::format("{} h {:02} min", total / 3600, total / 60 % 60);
}

Progress::Progress(bool enabled, std::int64_t total_steps, std::int64_t log_every)
    : enabled_(enabled),
      columns_(enabled ? terminal_columns() : 0),
      total_steps_(total_steps),
      log_every_(log_every) {}

std::string Progress::text(const io::MetricsLine& line) const {
  const double left = mean_step_seconds_ * static_cast<double>(total_steps_ - line.step);
  const bool images = line.images_per_second > 0;
  return fmt::format(
      "step {}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:.0f} {}/s  utilization {}  {} "
      "left",
      line.step, total_steps_, line.loss, line.grad_norm, line.lr,
      images ? line.images_per_second : line.tokens_per_second, images ? "images" : "tokens",
      std::isnan(line.mfu) ? "unknown" : fmt::format("{:.1f} %", 100.0 * line.mfu), duration(left));
}

void Progress::show(const io::MetricsLine& line) {
  if (!enabled_) return;
  mean_step_seconds_ = mean_step_seconds_ == 0 ? line.step_seconds
                                               : 0.9 * mean_step_seconds_ + 0.1 * line.step_seconds;
  if (columns_ > 0) {  // cut, because only one row can be overwritten
    fmt::print(stderr, "\r\x1b[K{:.{}}", text(line), columns_ - 1);
    std::fflush(stderr);
    open_ = true;
  } else if (line.step % log_every_ == 0 || line.step == 1 || line.step == total_steps_) {
    log::info(text(line));
  }
  if (line.validation) {
    finish_line();
    log::info(fmt::format("step {}/{}  validation loss {:.4f}  {}", line.step, total_steps_,
                          line.validation->loss, meaning_text(line.validation->meaning)));
  }
}

void Progress::finish_line() {
  if (!open_) return;
  fmt::print(stderr, "\n");
  open_ = false;
}

}  // namespace hyperslab::run
