// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/line_batches.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "run_jobs.hpp"
#include "tokenizer/cuts.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kBatchBytes = 8 << 20;
constexpr std::size_t kPartLines = 4096;
constexpr std::size_t kLinesAtOnce = 65536;  // each takes 80 bytes while they are decoded

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The first lines of `text`, which are taken from it, without their breaks.
void take_lines(std::string_view& text, std::vector<std::string_view>& lines) {
  while (!text.empty() && lines.size() < kLinesAtOnce) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// First lines of parts for one thread each, and the end of the last.
std::vector<std::size_t> parts_of(const std::vector<std::string_view>& lines) {
  std::vector<std::size_t> begins = {0};
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    bytes += lines[i].size();
    if (bytes < kPartBytes && i + 1 - begins.back() < kPartLines) continue;
    begins.push_back(i + 1);
    bytes = 0;
  }
  if (begins.back() != lines.size()) begins.push_back(lines.size());
  return begins;
}

}  // namespace

LineBatches::LineBatches(const std::string& path, LineRules rules)
    : path_(path), rules_(std::move(rules)), file_(path) {}

/// Whole lines that follow: at least one unless the file has ended.
std::string_view LineBatches::fill() {
  const std::size_t most = rules_.most_bytes;
  std::size_t expected = std::min(kBatchBytes, most + 1);
  while (true) {
    if (!at_end_) at_end_ = file_.fill(buffer_, expected);
    if (at_end_) return buffer_;
    const std::size_t last = buffer_.rfind('\n');
    if (last != buffer_.npos) return std::string_view(buffer_).substr(0, last + 1);
    if (buffer_.size() > most) drop_long_line();
    expected = std::min(2 * std::max(buffer_.size(), expected), most + 1);
  }
}

/// The buffer begins a line that is too long: it is refused, or passed over up to its end.
void LineBatches::drop_long_line() {
  const std::size_t most = rules_.most_bytes;
  complain(++lines_, fmt::format("has more than {} bytes", most));
  std::size_t end = buffer_.npos;
  while (end == buffer_.npos && !at_end_) {
    buffer_.clear();
    at_end_ = file_.fill(buffer_, std::min(kBatchBytes, most + 1));
    end = buffer_.find('\n');
  }
  buffer_.erase(0, end == buffer_.npos ? end : end + 1);
}

void LineBatches::complain(std::int64_t line, const std::string& problem) {
  if (!rules_.skip_broken) {
    throw Error(ExitCode::data, fmt::format("{}:{}: {}", path_, line, problem));
  }
  if (skipped_++ == 0) first_skipped_ = fmt::format("line {} {}", line, problem);
}

bool LineBatches::next(std::vector<std::string_view>& lines) {
  lines.clear();
  lines_ += std::exchange(batch_, 0);
  if (rest_.empty()) {
    buffer_.erase(0, std::exchange(given_, 0));
    if (at_end_ && buffer_.empty()) {
      end();
      return false;
    }
    rest_ = fill();
    given_ = rest_.size();
  }
  const bool is_open = !rest_.ends_with('\n');
  take_lines(rest_, lines);
  is_cut_ = rest_.empty() && is_open;
  batch_ = std::ssize(lines);
  return true;
}

void LineBatches::for_each(const std::vector<std::string_view>& lines,
                           const std::function<void(std::size_t)>& job) {
  const std::vector<std::size_t> parts = parts_of(lines);
  run_jobs(parts.size() - 1, omp_get_max_threads(), [&](std::size_t part) {
    for (std::size_t i = parts[part]; i < parts[part + 1]; ++i) {
      if (!is_blank(lines[i])) job(i);
    }
  });
}

bool LineBatches::take(const std::vector<std::string_view>& lines, std::size_t i,
                       const std::string& problem) {
  if (is_blank(lines[i])) return false;
  if (problem.empty()) {
    ++taken_;
    return true;
  }
  const bool is_cut = i + 1 == lines.size() && is_cut_;
  complain(lines_ + static_cast<std::int64_t>(i) + 1,
           problem + (is_cut ? " (the last line, without a line break: it may be cut)" : ""));
  return false;
}

void LineBatches::end() const {
  if (skipped_ == 0) return;
  const std::string what =
      fmt::format("{} of {} lines are left out; the first: {}", skipped_, lines_, first_skipped_);
  if (taken_ == 0) {
    throw Error(ExitCode::data, fmt::format("{}: expected lines with {}, found none: {}", path_,
                                            rules_.wanted, what));
  }
  log::warn(path_ + ": " + what);
}

}  // namespace hyperslab::io
