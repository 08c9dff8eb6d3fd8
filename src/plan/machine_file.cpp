// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/machine_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_keys.hpp"
#include "hyperslab/io/json_problem.hpp"
#include "hyperslab/io/text_file.hpp"

namespace hyperslab::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "hyperslab machine";
constexpr int kVersion = 1;
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

DType dtype_named(const std::string& name) {
  constexpr int kDTypes = 8;
  for (int i = 0; i < kDTypes; ++i) {
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  throw Error(ExitCode::usage, "there is no dtype '" + name + "'");
}

// [op, dtype, flops, bytes, seconds, kernels, rows and columns of every operand ...]
ordered_json to_json(const OpRow& row) {
  ordered_json out = {
      row.op, name_of(row.size.dtype), row.size.flops, row.size.bytes, row.seconds, row.kernels};
  for (const OpSize::Extent& extent : row.size.operands) {
    out.push_back(extent.rows);
    out.push_back(extent.columns);
  }
  return out;
}

OpRow op_row_of(const json& in) {
  constexpr std::size_t kFixed = 6;
  OpRow row;
  row.op = in.at(0).get<std::string>();
  row.size.dtype = dtype_named(in.at(1).get<std::string>());
  row.size.flops = in.at(2).get<double>();
  row.size.bytes = in.at(3).get<double>();
  row.seconds = in.at(4).get<double>();
  row.kernels = in.at(5).get<double>();
  for (std::size_t i = kFixed; i < in.size(); i += 2) {
    row.size.operands.push_back({in.at(i).get<double>(), in.at(i + 1).get<double>()});
  }
  if (!(row.seconds > 0) || !(row.kernels > 0)) {
    throw Error(ExitCode::usage,
                fmt::format("a row of {} has {} seconds and {} kernels; expected more than 0",
                            row.op, row.seconds, row.kernels));
  }
  return row;
}

ordered_json to_json(const CollectiveRow& row) {
  return {row.group, row.call, row.ranks, row.bytes, row.seconds};
}

CollectiveRow collective_row_of(const json& in) {
  CollectiveRow row = {in.at(0).get<std::string>(), in.at(1).get<std::string>(),
                       in.at(2).get<int>(), in.at(3).get<double>(), in.at(4).get<double>()};
  if (row.ranks < 2 || !(row.seconds > 0) || !(row.bytes > 0)) {
    throw Error(ExitCode::usage, row.call + " has no ranks, bytes or seconds");
  }
  return row;
}

MachineFile machine_of(const json& in) {
  if (in.at("format") != kFormat || in.at("format_version") != kVersion) {
    throw Error(ExitCode::usage,
                fmt::format("it is not a \"{}\" of version {}", kFormat, kVersion));
  }
  MachineFile machine;
  in.at("name").get_to(machine.name);
  in.at("device").get_to(machine.device);
  in.at("sources").get_to(machine.sources);
  in.at("ranks_per_node").get_to(machine.ranks_per_node);
  in.at("memory_bytes").get_to(machine.memory_bytes);
  in.at("launch_seconds").get_to(machine.launch_seconds);
  in.at("network_latency_seconds").get_to(machine.network_latency_seconds);
  in.at("network_bytes_per_second").get_to(machine.network_bytes_per_second);
  in.at("storage_bytes_per_second").get_to(machine.storage_bytes_per_second);
  in.at("peak_flops").get_to(machine.peak_flops);
  in.at("overlap_cost").get_to(machine.overlap_cost);
  // Each is optional: they were added later.
  machine.sustained_flops = in.value("sustained_flops", machine.sustained_flops);
  machine.sustained_bytes_per_second = in.value("sustained_bytes_per_second", 0.0);
  machine.host_bytes_per_second = in.value("host_bytes_per_second", 0.0);
  for (const auto& [precision, rows] : in.at("ops").items()) {
    for (const json& row : rows) machine.ops[precision].push_back(op_row_of(row));
  }
  for (const json& row : in.at("collectives")) {
    machine.collectives.push_back(collective_row_of(row));
  }
  return machine;
}

/// One row a line, so that two files can be compared by eye.
template <class Row>
std::string lines_of(const std::vector<Row>& rows, const char* indent) {
  std::string text = "[";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format("{}\n{}{}", i == 0 ? "" : ",", indent, to_json(rows[i]).dump());
  }
  return text + "]";
}

[[noreturn]] void refuse_machine_file(const std::string& path, const std::string& problem) {
  throw Error(ExitCode::usage, fmt::format("{} is no machine file: {}; write one with hyperslab "
                                           "bench DECK --machine FILE",
                                           path, problem));
}

}  // namespace

MachineFile read_machine_file(const std::string& path) {
  const std::string text = io::read_text_file(path, kMostBytes);
  try {
    if (io::is_too_deep(text)) throw Error(ExitCode::usage, "its JSON is nested too deep");
    if (const auto key = io::repeated_key(text)) {
      throw Error(ExitCode::usage, fmt::format("the key '{:.40}' stands twice", *key));
    }
    return machine_of(json::parse(text));
  } catch (const json::exception& error) {
    refuse_machine_file(path, io::json_problem(error));
  } catch (const Error& error) {
    refuse_machine_file(path, error.what());
  }
}

std::string to_text(const MachineFile& machine) {
  ordered_json head = {{"format", kFormat},
                       {"format_version", kVersion},
                       {"name", machine.name},
                       {"device", machine.device},
                       {"sources", machine.sources},
                       {"ranks_per_node", machine.ranks_per_node},
                       {"memory_bytes", machine.memory_bytes},
                       {"launch_seconds", machine.launch_seconds},
                       {"network_latency_seconds", machine.network_latency_seconds},
                       {"network_bytes_per_second", machine.network_bytes_per_second},
                       {"storage_bytes_per_second", machine.storage_bytes_per_second},
                       {"peak_flops", machine.peak_flops},
                       {"overlap_cost", machine.overlap_cost}};
  if (!machine.sustained_flops.empty()) head["sustained_flops"] = machine.sustained_flops;
  if (machine.sustained_bytes_per_second > 0) {
    head["sustained_bytes_per_second"] = machine.sustained_bytes_per_second;
  }
  if (machine.host_bytes_per_second > 0) {
    head["host_bytes_per_second"] = machine.host_bytes_per_second;
  }
  std::string text = head.dump(1);
  text.erase(text.rfind('\n'));  // the closing brace
  text += ",\n \"ops\": {";
  const char* separator = "";
  for (const auto& [precision, rows] : machine.ops) {
    text += fmt::format("{}\n  \"{}\": {}", separator, precision, lines_of(rows, "   "));
    separator = ",";
  }
  text += fmt::format("}},\n \"collectives\": {}\n}}\n", lines_of(machine.collectives, "  "));
  return text;
}

void merge(MachineFile& into, const MachineFile& measured) {
  into.name = measured.name;
  into.device = measured.device;
  into.ranks_per_node = measured.ranks_per_node;
  into.sources.insert(into.sources.end(), measured.sources.begin(), measured.sources.end());
  const auto take = [](double& old, double now) {
    if (now > 0) old = now;
  };
  take(into.memory_bytes, measured.memory_bytes);
  take(into.launch_seconds, measured.launch_seconds);
  take(into.network_latency_seconds, measured.network_latency_seconds);
  take(into.network_bytes_per_second, measured.network_bytes_per_second);
  take(into.storage_bytes_per_second, measured.storage_bytes_per_second);
  take(into.host_bytes_per_second, measured.host_bytes_per_second);
  for (const auto& [precision, flops] : measured.peak_flops) into.peak_flops[precision] = flops;
  for (const auto& [group, cost] : measured.overlap_cost) into.overlap_cost[group] = cost;
  for (const auto& [precision, rows] : measured.ops) {
    std::vector<OpRow>& known = into.ops[precision];
    for (const OpRow& row : rows) {
      std::erase_if(known,
                    [&](const OpRow& old) { return old.op == row.op && old.size == row.size; });
      known.push_back(row);
    }
    std::ranges::stable_sort(known, {}, &OpRow::op);
  }
  for (const CollectiveRow& row : measured.collectives) {
    std::erase_if(into.collectives, [&](const CollectiveRow& old) {
      return old.group == row.group && old.call == row.call && old.ranks == row.ranks &&
             old.bytes == row.bytes;
    });
    into.collectives.push_back(row);
  }
}

}  // namespace hyperslab::plan
