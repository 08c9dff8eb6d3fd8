// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "hdf5/attributes.hpp"
#include "hdf5/staged_file.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/timing.hpp"
#include "timing/complaint.hpp"
#include "timing/timing_tables.hpp"

namespace hyperslab::io {
namespace {

using comm::GroupRole;
using hdf5::Handle;
using hdf5::set_attribute;

Handle create(const std::string& path, StagedFile& disk) {
  hdf5::be_quiet();
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  hdf5::check(hdf5::use_backing(access, disk), ExitCode::storage, path);
  Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
  hdf5::check(static_cast<bool>(file), ExitCode::storage, path);
  return file;
}

/// "data 2 x tensor 1 x pipeline 1": the axes that all ranks have. Context ranks are in the data
/// group, too, and so are those that hold different experts: "data 4 (expert 2) x ...".
std::string layout_of(const RankInfo& info) {
  const auto size_of = [&](GroupRole role) {
    const auto group = std::ranges::find(info.groups, role, &GroupInfo::role);
    return group == info.groups.end() ? 1 : group->size;
  };
  const int tokens = size_of(GroupRole::context);
  const int experts = size_of(GroupRole::expert);
  std::string text;
  for (const GroupInfo& group : info.groups) {
    const bool is_axis = group.role == GroupRole::data || group.role == GroupRole::tensor ||
                         group.role == GroupRole::pipeline || group.role == GroupRole::context;
    if (!is_axis) continue;
    const int size = group.role == GroupRole::data ? group.size / tokens : group.size;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(group.role), size);
    if (group.role == GroupRole::data && experts > 1) text += fmt::format(" (expert {})", experts);
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
  set_attribute(file, "cores", info.cores);
  set_attribute(file, "schedule", info.schedule);
  set_attribute(file, "zero", info.zero);
  set_attribute(file, "sequence", info.sequence ? 1 : 0);
}

/// World ranks of the members, as the dataset `ranks` of the group.
void write_members(const Handle& group, const GroupInfo& info, const std::string& where) {
  if (info.role == GroupRole::world || info.ranks.empty()) return;
  const hsize_t count = info.ranks.size();
  const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Handle dataset(H5Dcreate2(group.get(), "ranks", H5T_STD_I32LE, space.get(), H5P_DEFAULT,
                                  H5P_DEFAULT, H5P_DEFAULT),
                       H5Dclose);
  hdf5::check(dataset && H5Dwrite(dataset.get(), H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                                  info.ranks.data()) >= 0,
              ExitCode::storage, where + "/ranks");
  set_attribute(dataset, "description", "world ranks of the members");
}

}  // namespace

struct TimingWriter::Impl {
  Impl(const std::string& file_path, const RankInfo& info, std::size_t rows)
      : path(file_path), disk(file_path), file(create(file_path, disk)), flush_rows(rows) {
    set_attributes(file, info);
    steps.reserve(rows);
    add_groups(info.groups);
    if (info.expert_layers > 0) add_loads(info.expert_layers, info.experts);
  }
  void add_loads(std::int64_t layers, std::int64_t experts) {
    loads.emplace(file, path, "experts", load_columns(static_cast<std::size_t>(layers * experts)));
    loads->set_attribute(1, "layers", layers);
    loads->set_attribute(1, "experts", experts);
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
      write_members(opened, group, path + ": /groups/" + name);
    }
  }
  /// Puts all rows into the file; returns why that failed, or nothing.
  std::string write() {
    if (!given_up.empty()) return given_up;
    try {
      steps.write();
      for (Table& group : groups) group.write();
      for (Table* table : {&traced, &events, &operations, &messages, &memory, &lives, &kernels}) {
        table->write();
      }
      if (loads) loads->write();
      hdf5::check(H5Fflush(file.get(), H5F_SCOPE_GLOBAL) >= 0, ExitCode::storage,
                  path + ": flushing failed");
    } catch (const Error& error) {  // HDF5 itself failed: nothing more is written
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
  Table traced{file, path, "traced", traced_columns()};
  Table operations{file, path, "operations", operation_columns()};
  Table messages{file, path, "messages", message_columns()};
  Table lives{file, path, "lives", life_columns()};
  Table kernels{file, path, "kernels", kernel_columns()};
  std::vector<Table> groups;
  std::optional<Table> loads;  // absent unless the model has experts
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
  try {
    const std::string failure = impl_->write();
    if (failure.empty()) return;
    log::warn(fmt::format("{}: {} row(s) are lost ({})", impl_->path, impl_->waiting, failure));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory is left to report it with
  }
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
    impl_->groups[i].push(4, traffic.arrival_seconds);
  }
  if (steps.pending() >= impl_->flush_rows) impl_->flush();
}

void TimingWriter::append_loads(std::int64_t step, std::span<const double> loads) {
  std::optional<Table>& table = impl_->loads;
  if (!impl_->given_up.empty() || !table) return;
  table->push_row(1, loads);
  table->push(0, step);
}

void TimingWriter::append_traced(const TracedStep& traced) {
  if (!impl_->given_up.empty()) return;
  Table& table = impl_->traced;
  table.push(0, traced.step);
  table.push(1, traced.start_seconds);
  table.push(2, traced.clock_offset_seconds);
  table.push(3, traced.clock_error_seconds);
  table.push(4, traced.lost);
}

void TimingWriter::append_operations(std::int64_t step,
                                     const std::vector<TraceOperation>& operations) {
  if (!impl_->given_up.empty()) return;
  Table& table = impl_->operations;
  for (const TraceOperation& each : operations) {
    table.push(0, step);
    table.push(1, std::string(each.group));
    table.push(2, std::string(each.operation));
    table.push(3, static_cast<std::int64_t>(each.ticket));
    table.push(4, each.bytes);
    table.push(5, static_cast<std::int64_t>(each.microbatch));
    table.push(6, each.call_seconds);
    table.push(7, each.wait_seconds);
    table.push(8, each.end_seconds);
  }
}

void TimingWriter::append_messages(std::int64_t step, const std::vector<TraceMessage>& messages,
                                   const std::vector<GroupInfo>& groups) {
  if (!impl_->given_up.empty()) return;
  Table& table = impl_->messages;
  for (const TraceMessage& each : messages) {
    const auto group = std::ranges::find(groups, each.group,
                                         [](const GroupInfo& info) { return name_of(info.role); });
    require(group != groups.end(), "a message of a group that the timing file does not have");
    table.push(0, step);
    table.push(1, std::string(each.group));
    table.push(2, static_cast<std::int64_t>(each.ticket));
    table.push(3, std::int64_t{each.sends ? 1 : 0});
    table.push(4, std::int64_t{group->ranks.at(static_cast<std::size_t>(each.peer))});
    table.push(5, each.bytes);
  }
}

void TimingWriter::append_kernels(std::int64_t step, const std::vector<DeviceEvent>& events,
                                  double step_start) {
  if (!impl_->given_up.empty()) return;
  Table& table = impl_->kernels;
  for (const DeviceEvent& each : events) {
    table.push(0, step);
    table.push(1, each.name);
    table.push(2, each.stream);
    table.push(3, std::string(name_of(each.phase)));
    table.push(4, std::string(each.component));
    table.push(5, static_cast<std::int64_t>(each.microbatch));
    table.push(6, each.bytes);
    table.push(7, each.begin_seconds - step_start);
    table.push(8, each.end_seconds - step_start);
  }
}

void TimingWriter::append_lives(std::int64_t step, const std::vector<AllocationLife>& lives) {
  if (!impl_->given_up.empty()) return;
  Table& table = impl_->lives;
  for (const AllocationLife& each : lives) {
    table.push(0, step);
    table.push(1, each.category);
    table.push(2, each.label);
    table.push(3, static_cast<std::int64_t>(each.layer));
    table.push(4, static_cast<std::int64_t>(each.slot));
    table.push(5, each.bytes);
    table.push(6, each.start_seconds);
    table.push(7, each.end_seconds);
  }
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
