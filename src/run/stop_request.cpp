// SPDX-License-Identifier: Apache-2.0
#include "stop_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>

#include "hyperslab/core/recorder.hpp"

namespace hyperslab::run {
namespace {

constexpr int kStepsToStop = 3;  // all ranks have stopped after the second step after the asking
constexpr double kSaveFactor = 1.5;
constexpr int kUnusualSteps = 2;  // the first ones choose algorithms and record graphs

/// For the end of the program and of its launcher: 2% of the time, 2 to 30 s.
double margin_seconds(double whole_seconds) { return std::clamp(0.02 * whole_seconds, 2.0, 30.0); }

std::string name_of_signal(int signal) {
  switch (signal) {
    case 0: return "to another rank";
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    default: return fmt::format("signal {}", signal);
  }
}

double number_in(const std::string& text) {
  double number = -1;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? number : -1;
}

/// The first line that a shell command prints, empty if it fails.
std::string first_line_of(const std::string& command) {
  const auto close = [](FILE* pipe) { (void)pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  std::array<char, 128> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return {};
  std::string text = line.data();
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return text;
}

/// Seconds that Slurm leaves this job; negative: there is no job or no limit.
double slurm_seconds_left() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) return -1;
  if (const char* const end = std::getenv("SLURM_JOB_END_TIME")) {
    const double left = number_in(end) - static_cast<double>(std::time(nullptr));
    if (left > 0) return left;
  }
  if (number_in(job) < 0) return -1;  // no number, nothing for a shell
  return seconds_of_slurm_time(
      first_line_of(fmt::format("timeout 10 squeue -h -j {} -o %L 2>/dev/null", job)));
}

}  // namespace

double seconds_of_slurm_time(const std::string& text) {
  const std::size_t dash = text.find('-');
  const bool has_days = dash != std::string::npos;
  const double days = has_days ? number_in(text.substr(0, dash)) : 0;
  if (days < 0) return -1;
  double seconds = 0;
  std::string rest = has_days ? text.substr(dash + 1) : text;
  for (;;) {
    const std::size_t colon = rest.find(':');
    const double part = number_in(rest.substr(0, colon));
    if (part < 0) return -1;
    seconds = 60 * seconds + part;
    if (colon == std::string::npos) break;
    rest.erase(0, colon + 1);
  }
  return 86400 * days + seconds;
}

TimeLimit time_limit(double walltime_minutes, double started) {
  TimeLimit limit;
  if (walltime_minutes > 0) {
    limit = {started + 60 * walltime_minutes, 60 * walltime_minutes, "run.walltime_minutes"};
  }
  const double now = now_seconds();
  const double left = slurm_seconds_left();
  if (left >= 0 && now + left < limit.end) {
    limit = {now + left, now + left - started, "the job's time limit (Slurm)"};
  }
  return limit;
}

StopRequest::StopRequest(const volatile int* signal, TimeLimit limit)
    : signal_(signal), limit_(std::move(limit)) {}

void StopRequest::note_save(double seconds) {
  save_seconds_ = has_saved_ ? std::max(save_seconds_, seconds) : seconds;
  has_saved_ = true;
}

void StopRequest::begin_step(double now) {
  if (begun_steps_ > 0) {
    const double seconds = std::max(0.0, now - last_begin_ - pause_seconds_);
    const bool is_first_usual = begun_steps_ == kUnusualSteps + 1;
    longest_step_ = is_first_usual ? seconds : std::max(longest_step_, seconds);
  }
  ++begun_steps_;
  last_begin_ = now;
  pause_seconds_ = 0;
}

double StopRequest::reserve_seconds() const {
  return kStepsToStop * longest_step_ + kSaveFactor * save_seconds_ +
         margin_seconds(limit_.whole_seconds);
}

std::string StopRequest::reason(double now) const {
  if (is_signalled() || !is_out_of_time(now)) {
    return fmt::format("on request ({})", name_of_signal(signal_ == nullptr ? 0 : *signal_));
  }
  return fmt::format(
      "since {:.0f} s of {} are left: {} steps of up to {:.2f} s and a save of up to {:.1f} s need "
      "{:.0f} s",
      std::max(0.0, limit_.end - now), limit_.source, kStepsToStop, longest_step_,
      kSaveFactor * save_seconds_, reserve_seconds());
}

}  // namespace hyperslab::run
