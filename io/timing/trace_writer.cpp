// SPDX-License-Identifier: Apache-2.0
// Chrome's trace format: "Trace Event Format", Google, 2016; times are in microseconds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <tuple>

#include "files/atomic_file.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/trace.hpp"
#include "timing/timing_reader.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

using Nanoseconds = std::int64_t;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
constexpr int kHostTrack = 1;
constexpr int kFirstStreamTrack = 100;
constexpr int kTracksOfAGroup = 1000;

Nanoseconds nanoseconds(double seconds) { return std::llround(1e9 * seconds); }

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

/// Microseconds with all digits.
std::string micro(Nanoseconds time) {
  const char* const sign = time < 0 ? "-" : "";
  const Nanoseconds positive = std::abs(time);
  return fmt::format("{}{}.{:03}", sign, positive / 1000, positive % 1000);
}

/// A traced step of one rank.
struct Step {
  std::int64_t number = 0;
  double begin_seconds = 0;  ///< on rank 0's clock
};

struct RankSteps {
  std::vector<Step> steps;
  std::int64_t lost = 0;
  double clock_error_seconds = 0;
};

RankSteps steps_of(const TimingReader& file) {
  const TableReader table = file.table("traced");
  if (table.rows() == 0) return {};
  const auto numbers = table.integers("step");
  const auto starts = table.numbers("start_seconds");
  const auto offsets = table.numbers("clock_offset_seconds");
  const auto errors = table.numbers("clock_error_seconds");
  const auto lost = table.integers("lost");
  RankSteps found;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    found.steps.push_back({numbers[i], starts[i] + offsets[i]});
    found.lost += lost[i];
    found.clock_error_seconds = std::max(found.clock_error_seconds, errors[i]);
  }
  return found;
}

/// The files of the ranks of a start in their order.
std::vector<std::string> rank_files(const fs::path& start) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(start, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("rank_") && name.ends_with(".h5")) files.push_back(it->path().string());
  }
  std::ranges::sort(files);
  return files;
}

/// True if a rank of the start was killed before its first row: its file is empty. Warns.
bool was_killed_early(const fs::path& start) {
  for (const std::string& file : rank_files(start)) {
    std::error_code error;
    if (fs::file_size(file, error) != 0 || error) continue;
    log::warn(fmt::format("{} is empty: its start was killed and is left out", file));
    return true;
  }
  return false;
}

/// The files of all ranks of a start in their order; throws Error(data) if one is missing.
std::vector<std::string> files_of(const fs::path& start) {
  std::vector<std::string> files = rank_files(start);
  if (files.empty()) throw Error(ExitCode::data, start.string() + ": holds no rank_*.h5");
  const std::int64_t expected = TimingReader(files.front()).integer("world_size");
  if (std::ssize(files) != expected) {
    throw Error(ExitCode::data,
                fmt::format("{}: holds {} of {} rank_*.h5; copy those of all hosts there",
                            start.string(), files.size(), expected));
  }
  return files;
}

/// The newest start whose first rank has traced a step.
fs::path traced_start(const std::string& run_directory) {
  const fs::path timing = fs::path(run_directory) / "timing";
  std::error_code error;
  std::set<fs::path> starts;
  for (fs::directory_iterator it(timing, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with("start_")) starts.insert(it->path());
  }
  if (starts.empty()) {
    throw Error(ExitCode::data, timing.string() + ": holds no timings of a start");
  }
  for (const fs::path& start : std::ranges::reverse_view(starts)) {
    if (was_killed_early(start)) continue;
    const fs::path first = start / "rank_00000.h5";
    if (fs::exists(first, error) && !steps_of(TimingReader(first.string())).steps.empty()) {
      return start;
    }
  }
  throw Error(ExitCode::data, run_directory +
                                  ": no step was traced; train with --set "
                                  "timing.trace_steps=[STEP,...]");
}

/// Writes one trace.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : file_(path) {
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  }
  /// An object of the format.
  void add(const std::string& event) {
    if (count_++ > 0) text_ += ",\n";
    text_ += event;
    if (text_.size() >= kBlockBytes) flush();
  }
  void commit() {
    text_ += "\n]}\n";
    flush();
    file_.commit();
  }

 private:
  void flush() {
    file_.append(text_);
    text_.clear();
  }
  AtomicFile file_;
  std::string text_;
  std::int64_t count_ = 0;
};

/// A span on a track.
struct Span {
  std::string name;
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  std::string arguments;  ///< the members of a JSON object
};

/// Writes the events of one rank to a trace.
class RankTrace {
 public:
  /// `begin_seconds`: of the trace, on rank 0's clock.
  RankTrace(const std::string& path, double begin_seconds, TraceFile& trace);
  void write();
  [[nodiscard]] std::int64_t events() const { return events_; }
  /// Messages sent, and those received, by (step, from, to).
  using Messages = std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::int64_t>;
  [[nodiscard]] const Messages& sent() const { return sent_; }
  [[nodiscard]] const Messages& received() const { return received_; }

 private:
  [[nodiscard]] Nanoseconds at(std::int64_t step, double seconds) const;
  void name_process();
  void name_track(int track, const std::string& name);
  [[nodiscard]] int track_of(const std::string& group, Nanoseconds call, Nanoseconds end);
  void add(int track, const Span& span);
  void write_computation(bool has_device);
  bool write_kernels();
  void write_groups();
  void write_messages();
  void write_memory();

  TimingReader file_;
  TraceFile& trace_;
  double begin_seconds_;
  std::int64_t rank_;
  std::map<std::int64_t, double> steps_;
  /// Track, call and end of an operation by step, group and ticket.
  struct Exchange {
    int track = 0;
    Nanoseconds call = 0;
    Nanoseconds end = 0;
  };
  std::map<std::tuple<std::int64_t, std::string, std::int64_t>, Exchange> exchanges_;
  struct GroupTracks {
    int number = 0;                       ///< number of the group, from 1
    std::vector<Nanoseconds> busy_until;  ///< each of its tracks
  };
  std::map<std::string, GroupTracks> groups_;
  std::int64_t events_ = 0;
  Messages sent_;
  Messages received_;
};

RankTrace::RankTrace(const std::string& path, double begin_seconds, TraceFile& trace)
    : file_(path), trace_(trace), begin_seconds_(begin_seconds), rank_(file_.integer("rank")) {
  for (const Step& step : steps_of(file_).steps) steps_[step.number] = step.begin_seconds;
}

Nanoseconds RankTrace::at(std::int64_t step, double seconds) const {
  const auto found = steps_.find(step);
  const double begin = found == steps_.end() ? std::numeric_limits<double>::quiet_NaN()
                                             : found->second - begin_seconds_;
  if (!std::isfinite(begin + seconds)) {
    throw Error(ExitCode::data,
                fmt::format("{}: step {} has events, but /traced does not say when it began",
                            file_.path(), step));
  }
  return nanoseconds(begin) + nanoseconds(seconds);
}

void RankTrace::write() {
  name_process();
  write_computation(write_kernels());
  write_groups();
  write_messages();
  write_memory();
}

void RankTrace::name_process() {
  const std::string name = fmt::format(
      "rank {} (data {}, tensor {}, pipeline {}) {} {}", rank_, file_.integer("data"),
      file_.integer("tensor"), file_.integer("pipeline"), file_.text("host"), file_.text("device"));
  trace_.add(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})",
                         rank_, quoted(name)));
  trace_.add(fmt::format(
      R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})", rank_));
}

void RankTrace::name_track(int track, const std::string& name) {
  trace_.add(
      fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                  rank_, track, quoted(name)));
  trace_.add(fmt::format(
      R"({{"ph":"M","name":"thread_sort_index","pid":{0},"tid":{1},"args":{{"sort_index":{1}}}}})",
      rank_, track));
}

void RankTrace::add(int track, const Span& span) {
  ++events_;
  trace_.add(
      fmt::format(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                  quoted(span.name), rank_, track, micro(span.begin), micro(span.end - span.begin),
                  span.arguments));
}

/// A track for each stream of a GPU. Returns whether there are any.
bool RankTrace::write_kernels() {
  const TableReader table = file_.table("kernels");
  const auto steps = table.integers("step");
  const auto names = table.texts("name");
  const auto streams = table.texts("stream");
  const auto phases = table.texts("phase");
  const auto components = table.texts("component");
  const auto microbatches = table.integers("microbatch");
  const auto bytes = table.integers("bytes");
  const auto starts = table.numbers("start_seconds");
  const auto ends = table.numbers("end_seconds");
  std::map<std::string, int> tracks;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const int next = kFirstStreamTrack + static_cast<int>(tracks.size());
    const auto [track, is_new] = tracks.try_emplace(streams[i], next);
    if (is_new) name_track(next, "GPU " + streams[i]);
    std::string arguments = fmt::format(R"("step":{},"phase":{},"component":{})", steps[i],
                                        quoted(phases[i]), quoted(components[i]));
    if (microbatches[i] >= 0) arguments += fmt::format(R"(,"microbatch":{})", microbatches[i]);
    if (bytes[i] > 0) arguments += fmt::format(R"(,"bytes":{})", bytes[i]);
    add(track->second, {names[i], at(steps[i], starts[i]), at(steps[i], ends[i]), arguments});
  }
  return table.rows() > 0;
}

/// Phases, units and components, each inside the one around it. On a GPU they show the host's
/// enqueueing.
void RankTrace::write_computation(bool has_device) {
  const TableReader table = file_.table("events");
  const auto steps = table.integers("step");
  const auto names = table.texts("name");
  const auto streams = table.texts("stream");
  const auto microbatches = table.integers("microbatch");
  const auto starts = table.numbers("start_seconds");
  const auto ends = table.numbers("end_seconds");
  name_track(kHostTrack, has_device ? "host" : "compute");
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (streams[i] != "compute") continue;
    std::string arguments = fmt::format(R"("step":{})", steps[i]);
    if (microbatches[i] >= 0) arguments += fmt::format(R"(,"microbatch":{})", microbatches[i]);
    add(kHostTrack, {names[i], at(steps[i], starts[i]), at(steps[i], ends[i]), arguments});
  }
}

/// The track of the next operation of a group; operations of one group come by their calls.
int RankTrace::track_of(const std::string& group, Nanoseconds call, Nanoseconds end) {
  const auto number = static_cast<int>(groups_.size()) + 1;
  GroupTracks& tracks = groups_.try_emplace(group, GroupTracks{number, {}}).first->second;
  const auto free =
      std::ranges::find_if(tracks.busy_until, [&](Nanoseconds until) { return until <= call; });
  const auto index = static_cast<int>(free - tracks.busy_until.begin());
  const int track = tracks.number * kTracksOfAGroup + index;
  if (free == tracks.busy_until.end()) {
    tracks.busy_until.push_back(end);
    name_track(track, index == 0 ? group : fmt::format("{} {}", group, index + 1));
  } else {
    *free = end;
  }
  return track;
}

/// Operations of a group that overlap get tracks of their own.
void RankTrace::write_groups() {
  const TableReader table = file_.table("operations");
  const auto steps = table.integers("step");
  const auto groups = table.texts("group");
  const auto names = table.texts("operation");
  const auto tickets = table.integers("ticket");
  const auto bytes = table.integers("bytes");
  const auto calls = table.numbers("call_seconds");
  const auto waits = table.numbers("wait_seconds");
  const auto ends = table.numbers("end_seconds");
  std::vector<std::size_t> rows(table.rows());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i;
  std::ranges::stable_sort(rows, {}, [&](std::size_t i) { return at(steps[i], calls[i]); });
  for (const std::size_t i : rows) {
    const Nanoseconds call = at(steps[i], calls[i]);
    const Nanoseconds end = std::max(call, at(steps[i], ends[i]));
    const int track = track_of(groups[i], call, end);
    exchanges_[{steps[i], groups[i], tickets[i]}] = {track, call, end};
    std::string arguments =
        fmt::format(R"("step":{},"bytes":{},"ticket":{})", steps[i], bytes[i], tickets[i]);
    if (std::isfinite(waits[i])) {
      const double waited = std::max(0.0, ends[i] - std::max(waits[i], calls[i]));
      arguments += fmt::format(R"(,"waited_for_seconds":{})", waited);
    }
    add(track, {names[i], call, end, arguments});
  }
}

/// Arrows from sends to receives. The k-th message from one rank to another in a step is one for
/// both of them.
void RankTrace::write_messages() {
  const TableReader table = file_.table("messages");
  const auto steps = table.integers("step");
  const auto groups = table.texts("group");
  const auto tickets = table.integers("ticket");
  const auto sends = table.integers("sends");
  const auto peers = table.integers("peer");
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const bool out = sends[i] != 0;
    const std::int64_t from = out ? rank_ : peers[i];
    const std::int64_t to = out ? peers[i] : rank_;
    const std::int64_t number = (out ? sent_ : received_)[{steps[i], from, to}]++;
    const auto found = exchanges_.find({steps[i], groups[i], tickets[i]});
    if (found == exchanges_.end()) continue;  // waited for after the step
    const auto& [track, call, end] = found->second;
    // An arrow begins and ends inside of a span.
    const Nanoseconds time = out ? call : std::max(call, end - 1);
    const std::uint64_t id = ((static_cast<std::uint64_t>(steps[i]) & 0xFFFF) << 48U) |
                             (static_cast<std::uint64_t>(from) << 34U) |
                             (static_cast<std::uint64_t>(to) << 20U) |
                             static_cast<std::uint64_t>(number);
    trace_.add(fmt::format(
        R"({{"ph":"{}","name":"message","cat":"{}","id":"0x{:x}","pid":{},"tid":{},"ts":{}{}}})",
        out ? "s" : "f", groups[i], id, rank_, track, micro(time), out ? "" : R"(,"bp":"e")"));
  }
}

void RankTrace::write_memory() {
  const TableReader table = file_.table("memory");
  const auto steps = table.integers("step");
  const auto times = table.numbers("time_seconds");
  const auto bytes = table.integers("bytes");
  for (std::size_t i = 0; i < table.rows(); ++i) {
    trace_.add(
        fmt::format(R"({{"ph":"C","name":"memory in use","pid":{},"ts":{},"args":{{"bytes":{}}}}})",
                    rank_, micro(at(steps[i], times[i])), bytes[i]));
  }
}

/// Finds traced steps and losses of all files, and the earliest start of a step on any rank.
TraceSummary summarize(const std::vector<std::string>& files, double& begin_seconds) {
  TraceSummary summary;
  summary.ranks = static_cast<int>(files.size());
  std::set<std::int64_t> steps;
  begin_seconds = std::numeric_limits<double>::infinity();
  for (const std::string& file : files) {
    const RankSteps rank = steps_of(TimingReader(file));
    for (const Step& step : rank.steps) {
      steps.insert(step.number);
      begin_seconds = std::min(begin_seconds, step.begin_seconds);
    }
    summary.lost += rank.lost;
    summary.clock_error_seconds = std::max(summary.clock_error_seconds, rank.clock_error_seconds);
  }
  summary.steps.assign(steps.begin(), steps.end());
  return summary;
}

}  // namespace

TraceSummary write_trace(const std::string& run_directory, const std::string& output) {
  const fs::path start = traced_start(run_directory);
  const std::vector<std::string> files = files_of(start);
  double begin_seconds = 0;
  TraceSummary summary = summarize(files, begin_seconds);
  summary.start = start.string();
  TraceFile trace(output);
  RankTrace::Messages sent;
  RankTrace::Messages received;
  for (const std::string& file : files) {
    RankTrace rank(file, begin_seconds, trace);
    rank.write();
    summary.events += rank.events();
    sent.insert(rank.sent().begin(), rank.sent().end());
    received.insert(rank.received().begin(), rank.received().end());
  }
  for (const auto& [ends, count] : sent) {
    const auto other = received.find(ends);
    if (other != received.end()) summary.flows += std::min(count, other->second);
  }
  trace.commit();
  return summary;
}

}  // namespace hyperslab::io
