// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/json_lines.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
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

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ExitCode::data, path + what);
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The first lines of `text`, which are taken from it, without their breaks.
std::vector<std::string_view> take_lines(std::string_view& text) {
  std::vector<std::string_view> lines;
  while (!text.empty() && lines.size() < kLinesAtOnce) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
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

bool is_json_lines(const std::string& path, const JsonLines& format) {
  return format.all || path.ends_with(".jsonl");
}

void warn_of_json(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::ifstream file(path, std::ios::binary);
  std::string line(kPartBytes, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(std::min(static_cast<std::size_t>(file.gcount()), line.find('\n')));
  if (!line.starts_with('{') || !nlohmann::json::accept(line)) return;
  log::warn(
      fmt::format("{}: its first line is a JSON object, and the file is taken as text; give "
                  "--jsonl if it holds JSON lines",
                  path));
}

void refuse_other_formats(const std::vector<std::string>& inputs) {
  for (const std::string& path : inputs) {
    for (const char* suffix : {".gz", ".zst", ".xz", ".bz2"}) {
      if (!path.ends_with(suffix)) continue;
      fail(path,
           ": expected text or JSON lines, found the name of a compressed file; decompress "
           "it into a pipe, as in: zcat FILE.jsonl.gz | hyperslab tokenize --jsonl --input - "
           "...");
    }
    if (path.ends_with(".parquet")) {
      fail(path,
           ": expected text or JSON lines, found the name of a Parquet file; convert it: "
           "jobs/data/parquet_text.py --jsonl FILE | hyperslab tokenize --jsonl --input - "
           "...");
    }
  }
}

JsonLinesReader::JsonLinesReader(const std::string& path, JsonLines format, std::size_t most)
    : path_(path), json_(std::move(format)), most_(most), file_(path) {}

/// Whole lines that follow: at least one unless the file has ended.
std::string_view JsonLinesReader::fill() {
  std::size_t expected = std::min(kBatchBytes, most_ + 1);
  while (true) {
    if (!at_end_) at_end_ = file_.fill(buffer_, expected);
    if (at_end_) return buffer_;
    const std::size_t last = buffer_.rfind('\n');
    if (last != buffer_.npos) return std::string_view(buffer_).substr(0, last + 1);
    if (buffer_.size() > most_) drop_long_line();
    expected = std::min(2 * std::max(buffer_.size(), expected), most_ + 1);
  }
}

/// The buffer begins a line that is too long: it is refused, or passed over up to its end.
void JsonLinesReader::drop_long_line() {
  complain(++lines_, fmt::format("has more than {} bytes", most_));
  std::size_t end = buffer_.npos;
  while (end == buffer_.npos && !at_end_) {
    buffer_.clear();
    at_end_ = file_.fill(buffer_, std::min(kBatchBytes, most_ + 1));
    end = buffer_.find('\n');
  }
  buffer_.erase(0, end == buffer_.npos ? end : end + 1);
}

void JsonLinesReader::complain(std::int64_t line, const std::string& problem) {
  if (!json_.skip_broken) fail(path_, fmt::format(":{}: {}", line, problem));
  if (skipped_++ == 0) first_skipped_ = fmt::format("line {} {}", line, problem);
}

void JsonLinesReader::take(std::string_view text, std::vector<std::string>& texts) {
  const bool is_open = !text.ends_with('\n');
  while (!text.empty()) {
    const std::vector<std::string_view> lines = take_lines(text);
    decode(lines, text.empty() && is_open, texts);
  }
}

/// `is_open`: the last line has no line break.
void JsonLinesReader::decode(const std::vector<std::string_view>& lines, bool is_open,
                             std::vector<std::string>& texts) {
  const std::vector<std::size_t> parts = parts_of(lines);
  std::vector<JsonText> found(lines.size());
  run_jobs(parts.size() - 1, omp_get_max_threads(), [&](std::size_t part) {
    for (std::size_t i = parts[part]; i < parts[part + 1]; ++i) {
      if (!is_blank(lines[i])) found[i] = json_text(lines[i], json_.text_key);
    }
  });
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::int64_t line = ++lines_;
    if (is_blank(lines[i])) continue;
    const bool is_cut = i + 1 == lines.size() && is_open;
    if (!found[i].problem.empty()) {
      complain(line, found[i].problem +
                         (is_cut ? " (the last line, without a line break: it may be cut)" : ""));
      continue;
    }
    ++found_;
    texts.push_back(std::move(found[i].text));
  }
}

void JsonLinesReader::end() const {
  if (skipped_ == 0) return;
  const std::string what =
      fmt::format("{} of {} lines are left out; the first: {}", skipped_, lines_, first_skipped_);
  if (found_ == 0) fail(path_, ": expected lines with a text, found none: " + what);
  log::warn(path_ + ": " + what);
}

bool JsonLinesReader::next(std::vector<std::string>& texts) {
  texts.clear();
  if (at_end_ && buffer_.empty()) return false;
  const std::string_view lines = fill();
  take(lines, texts);
  buffer_.erase(0, lines.size());
  if (at_end_ && buffer_.empty()) end();
  return true;
}

}  // namespace hyperslab::io
