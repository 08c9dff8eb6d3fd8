// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "hdf5/attributes.hpp"
#include "hdf5/staged_file.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/timing.hpp"
#include "timing/columns.hpp"
#include "timing/complaint.hpp"

namespace hyperslab::io {
namespace {

using comm::GroupRole;
using hdf5::Handle;
using hdf5::set_attribute;
using Seconds = std::vector<double>;
using Integers = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

Handle create(const std::string& path, StagedFile& disk) {
  hdf5::be_quiet();
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  hdf5::check(hdf5::use_backing(access, disk), ExitCode::storage, path);
  Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
  hdf5::check(static_cast<bool>(file), ExitCode::storage, path);
  return file;
}

/// "data 2 x tensor 1 x pipeline 1": the groups that all ranks have.
std::string layout_of(const RankInfo& info) {
  std::string text;
  for (const GroupInfo& group : info.groups) {
    const bool is_axis = group.role == GroupRole::data || group.role == GroupRole::tensor ||
                         group.role == GroupRole::pipeline;
    if (!is_axis) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(group.role), group.size);
  }
  return text;
}

void set_attributes(const Handle& file, const RankInfo& info) {
  set_attribute(file, "format", "hyperslab timing");
  set_attribute(file, "format_version", 1);
  set_attribute(file, "layout", layout_of(info));
  set_attribute(file, "rank", info.rank);
  set_attribute(file, "world_size", info.world_size);
  set_attribute(file, "data", info.data);
  set_attribute(file, "pipeline", info.pipeline);
  set_attribute(file, "context", info.context);
  set_attribute(file, "tensor", info.tensor);
  set_attribute(file, "host", info.host);
  set_attribute(file, "device", info.device);
  set_attribute(file, "commit", info.commit);
  set_attribute(file, "start_time", info.start_time);
  set_attribute(file, "threads", info.threads);
  set_attribute(file, "schedule", info.schedule);
  set_attribute(file, "zero", info.zero);
  set_attribute(file, "sequence", info.sequence ? 1 : 0);
}

/// A phase's column; the phases that have none are part of step_seconds alone.
struct PhaseColumn {
  const char* name;
  Phase phase;
  const char* description;
};
constexpr PhaseColumn kBeforeReduce[] = {
    {"data_seconds", Phase::data, "waiting for samples and copying them to the device"},
    {"forward_seconds", Phase::forward, "forward passes of all microbatches"},
    {"backward_seconds", Phase::backward, "backward passes of all microbatches"},
    {"optimizer_seconds", Phase::optimizer, "clipping and the update of the parameters"}};
constexpr PhaseColumn kAfterReduce[] = {
    {"reduce_exposed_seconds", Phase::reduce_exposed,
     "waiting for reductions of gradients that nothing else covers"},
    {"tensor_comm_seconds", Phase::tensor_comm, "communication of the tensor group"},
    {"pipeline_comm_seconds", Phase::pipeline_comm, "sending and receiving between stages"},
    {"pipeline_idle_seconds", Phase::pipeline_idle, "waiting for another stage of the pipeline"},
    {"wait_seconds", Phase::wait, "waiting for slower ranks"},
    {"checkpoint_seconds", Phase::checkpoint, "saving a checkpoint after the step"}};

std::vector<Column> step_columns() {
  std::vector<Column> columns{
      {"step", "1", "number of the training step, from 1", Integers{}},
      {"step_seconds", "s", "wall time of the whole step on this rank", Seconds{}}};
  const auto add = [&](const PhaseColumn& phase) {
    columns.push_back({phase.name, "s", phase.description, Seconds{}});
  };
  for (const PhaseColumn& phase : kBeforeReduce) add(phase);
  columns.push_back({"reduce_seconds", "s",
                     "reductions of gradients; those under way at once are added up", Seconds{}});
  for (const PhaseColumn& phase : kAfterReduce) add(phase);
  columns.push_back({"tokens", "1", "tokens that this rank trained on in the step", Integers{}});
  columns.push_back({"memory_peak_bytes", "bytes", "most memory in use so far", Integers{}});
  columns.push_back({"memory_now_bytes", "bytes", "memory in use at the end", Integers{}});
  columns.push_back({"reduce_busy_seconds", "s",
                     "time with at least one reduction of gradients under way", Seconds{}});
  return columns;
}

std::vector<Column> traffic_columns() {
  return {{"calls", "1", "operations of the group in the step", Integers{}},
          {"bytes", "bytes", "bytes of the buffers handed in", Integers{}},
          {"seconds", "s", "operations from call to end; NaN: not measured", Seconds{}},
          {"exposed_seconds", "s", "waiting for the group; NaN: not measured", Seconds{}}};
}

std::vector<Column> event_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"name", "", "what was done", Texts{}},
          {"stream", "", "where it was done: compute, or a group's communication", Texts{}},
          {"microbatch", "1", "microbatch of the step, -1: none", Integers{}},
          {"start_seconds", "s", "since the beginning of the step", Seconds{}},
          {"end_seconds", "s", "since the beginning of the step", Seconds{}}};
}

std::vector<Column> memory_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"time_seconds", "s", "since the beginning of the step", Seconds{}},
          {"bytes", "bytes", "memory in use from then on", Integers{}},
          {"label", "", "what was taken or given back", Texts{}}};
}

}  // namespace

struct TimingWriter::Impl {
  Impl(const std::string& file_path, const RankInfo& info, std::size_t rows)
      : path(file_path), disk(file_path), file(create(file_path, disk)), flush_rows(rows) {
    set_attributes(file, info);
    steps.reserve(rows);
    add_groups(info.groups);
  }
  void add_groups(const std::vector<GroupInfo>& expected) {
    require(expected.size() <= kMostGroups, "a rank is in more groups than its timing file takes");
    const Handle made(H5Gcreate2(file.get(), "groups", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                      H5Gclose);
    hdf5::check(static_cast<bool>(made), ExitCode::storage, path + ": /groups");
    for (const GroupInfo& group : expected) {
      const std::string name(name_of(group.role));
      Table& table = groups.emplace_back(file, path, "groups/" + name, traffic_columns());
      table.reserve(flush_rows);
      const Handle opened(H5Gopen2(made.get(), name.c_str(), H5P_DEFAULT), H5Gclose);
      set_attribute(opened, "size", group.size);
    }
  }
  /// Puts all rows into the file; returns why that failed, or nothing.
  std::string write() {
    if (!given_up.empty()) return given_up;
    try {
      steps.write();
      for (Table& group : groups) group.write();
      events.write();
      memory.write();
      hdf5::check(H5Fflush(file.get(), H5F_SCOPE_GLOBAL) >= 0, ExitCode::storage,
                  path + ": flushing failed");
    } catch (const Error& error) {  // of HDF5 itself, which is not to be trusted after that
      return given_up = error.what();
    }
    std::string failure = disk.commit();
    if (disk.is_broken()) given_up = failure;
    return failure;
  }
  void flush() {
    const std::string failure = write();
    if (failure.empty()) {
      waiting = 0;
      complaint.resolve(path + ": written again");
    } else {
      complaint.warn(failure + "; training goes on, " +
                     (given_up.empty() ? "the rows wait in memory" : "without further rows"));
    }
    if (disk.is_removed()) {
      removed.warn(path + ": was removed, or the folder around it, while the run goes on");
    }
  }

  std::string path;
  StagedFile disk;
  Handle file;
  std::size_t flush_rows;
  std::string given_up;      ///< why no more rows are kept; empty: they are
  std::int64_t waiting = 0;  ///< rows of steps since the newest flush that worked
  Complaint complaint;
  Complaint removed;
  Table steps{file, path, "steps", step_columns()};
  Table events{file, path, "events", event_columns()};
  Table memory{file, path, "memory", memory_columns()};
  std::vector<Table> groups;
};

TimingWriter::TimingWriter(const std::string& folder, const RankInfo& info,
                           std::size_t flush_rows) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(ExitCode::storage, folder + ": " + error.message());
  impl_ =
      std::make_unique<Impl>(fmt::format("{}/rank_{:05d}.h5", folder, info.rank), info, flush_rows);
  const std::string failure = impl_->write();
  if (!failure.empty()) throw Error(ExitCode::storage, failure);
}

TimingWriter::TimingWriter(TimingWriter&&) noexcept = default;
TimingWriter& TimingWriter::operator=(TimingWriter&&) noexcept = default;

TimingWriter::~TimingWriter() {
  if (!impl_) return;
  const std::string failure = impl_->write();
  if (failure.empty()) return;
  log::warn(fmt::format("{}: {} row(s) are lost ({})", impl_->path, impl_->waiting, failure));
}

void TimingWriter::append(const TimingRow& row) {
  ++impl_->waiting;
  if (!impl_->given_up.empty()) return;
  Table& steps = impl_->steps;
  const StepTimes& times = row.times;
  std::size_t column = 0;
  steps.push(column++, times.step);
  steps.push(column++, times.step_seconds);
  for (const PhaseColumn& phase : kBeforeReduce) steps.push(column++, times.phase(phase.phase));
  steps.push(column++, times.reduce_seconds);
  for (const PhaseColumn& phase : kAfterReduce) steps.push(column++, times.phase(phase.phase));
  steps.push(column++, row.tokens);
  steps.push(column++, row.memory_peak_bytes);
  steps.push(column++, row.memory_now_bytes);
  steps.push(column++, times.reduce_busy_seconds);
  for (std::size_t i = 0; i < impl_->groups.size(); ++i) {
    const GroupTraffic& traffic = row.groups[i];
    impl_->groups[i].push(0, traffic.calls);
    impl_->groups[i].push(1, traffic.bytes);
    impl_->groups[i].push(2, traffic.seconds);
    impl_->groups[i].push(3, traffic.exposed_seconds);
  }
  if (steps.pending() >= impl_->flush_rows) impl_->flush();
}

void TimingWriter::append_events(std::int64_t step, const std::vector<TraceEvent>& events) {
  if (!impl_->given_up.empty()) return;
  Table& table = impl_->events;
  for (const TraceEvent& event : events) {
    table.push(0, step);
    table.push(1, std::string(event.name));
    table.push(2, std::string(event.stream));
    table.push(3, static_cast<std::int64_t>(event.microbatch));
    table.push(4, event.start_seconds);
    table.push(5, event.end_seconds);
  }
}

void TimingWriter::append_memory(std::int64_t step, double seconds, std::int64_t bytes,
                                 const std::string& label) {
  if (!impl_->given_up.empty()) return;
  Table& table = impl_->memory;
  table.push(0, step);
  table.push(1, seconds);
  table.push(2, bytes);
  table.push(3, label);
}

void TimingWriter::flush() { impl_->flush(); }

std::string next_start_folder(const std::string& run_directory) {
  namespace fs = std::filesystem;
  const fs::path timing = fs::path(run_directory) / "timing";
  std::error_code error;
  fs::create_directories(timing, error);
  int last = 0;
  for (fs::directory_iterator it(timing, error), end; !error && it != end; it.increment(error)) {
    int number = 0;
    const std::string name = it->path().filename().string();
    if (std::sscanf(name.c_str(), "start_%d", &number) == 1) last = std::max(last, number);
  }
  const fs::path folder = timing / fmt::format("start_{:04d}", last + 1);
  if (!error) fs::create_directory(folder, error);
  if (error) throw Error(ExitCode::storage, folder.string() + ": " + error.message());
  return folder.string();
}

}  // namespace hyperslab::io
