// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/line_log.hpp"

#include <fmt/format.h>

#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "files/atomic_file.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "timing/complaint.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

/// The step of a line; nothing if the line is torn.
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

/// Leaves only lines of steps before `first_step` in the file.
storage::File cut_and_open(const std::string& path, std::int64_t first_step) {
  if (std::filesystem::exists(path)) {
    const std::string text = storage::read_text(path);
    const std::string kept = kept_lines(path, text, first_step);
    if (kept != text) replace_text(path, kept);
  }
  return storage::File::open_or_create(path);
}

}  // namespace

struct LineLog::Impl {
  Impl(const std::string& name, std::int64_t first_step, std::size_t most)
      : path(name), file(cut_and_open(name, first_step)), end(file.size()), most_pending(most) {}

  /// Writes the waiting lines after the last whole line. Throws Error(storage), having removed the
  /// part it wrote.
  void write_pending() {
    const std::uint64_t size = file.size();
    if (size < end) end = size;          // someone emptied it
    if (size > end) file.set_size(end);  // a torn line that could not be removed before
    std::string text;
    for (const std::string& line : pending) text += line;
    try {
      file.write_at(end, text.data(), text.size());
    } catch (const Error&) {
      file.set_size(end);
      throw;
    }
    end += text.size();
    if (file.is_removed()) removed_lines += pending.size();
    pending.clear();
  }
  void append(const std::string& line) {
    pending.push_back(line + "\n");
    if (pending.size() > most_pending) {
      pending.pop_front();
      ++lost;
    }
    try {
      write_pending();
      complaint.resolve(path + ": written again");
    } catch (const Error& error) {
      complaint.warn(fmt::format("{}; training goes on, the lines wait in memory", error.what()));
    }
    if (!file.is_removed()) return;
    removed.warn(path +
                 ": was removed, or the folder around it, while the run goes on; its lines "
                 "from here on are lost");
  }
  /// Counts the appended lines that are dropped, still pending or in a file that was removed.
  [[nodiscard]] std::size_t lost_lines() const { return lost + pending.size() + removed_lines; }

  std::string path;
  storage::File file;
  std::uint64_t end;  ///< after the last whole line
  std::size_t most_pending;
  std::deque<std::string> pending;  ///< each with its end of line
  std::size_t lost = 0;
  std::size_t removed_lines = 0;
  Complaint complaint;
  Complaint removed;
};

LineLog::LineLog(const std::string& path, std::int64_t first_step, std::size_t most_pending)
    : impl_(std::make_unique<Impl>(path, first_step, most_pending)) {}

LineLog::LineLog(LineLog&&) noexcept = default;
LineLog& LineLog::operator=(LineLog&&) noexcept = default;

LineLog::~LineLog() {
  if (!impl_) return;
  std::string reason;
  try {
    if (!impl_->pending.empty()) impl_->write_pending();
  } catch (const std::exception& error) {
    reason = fmt::format(" ({})", error.what());
  }
  const std::size_t lost = impl_->lost_lines();
  if (lost > 0) log::warn(fmt::format("{}: {} line(s) are lost{}", impl_->path, lost, reason));
}

void LineLog::append(const std::string& line) { impl_->append(line); }

}  // namespace hyperslab::io
