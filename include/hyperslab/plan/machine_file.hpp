// SPDX-License-Identifier: Apache-2.0
// Measurements of a machine, for predicting the time of a step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hyperslab/core/operation_list.hpp"
#include "hyperslab/core/precision.hpp"

namespace hyperslab::plan {

/// Times of one op of one size.
struct OpRow {
  std::string op;
  OpSize size;
  double seconds = 0;  ///< seconds of its kernels, or of the CPU
  double kernels = 1;  ///< that one call launches
};

/// Time of one collective, or of one message, between ranks of one node.
struct CollectiveRow {
  std::string group;  ///< whose share of the GPU it takes: "data", "tensor", "pipeline"
  std::string call;   ///< "all_reduce", "send"
  int ranks = 2;
  double bytes = 0;  ///< bytes of the whole buffer, as comm::Traffic counts them
  double seconds = 0;
};

/// One kind of machine. Files hold it as JSON; `hyperslab bench DECK --machine FILE` adds to it.
struct MachineFile {
  std::string name;                    ///< name of the GPU or CPU
  std::string device = "cuda";         ///< or "cpu"
  std::vector<std::string> sources;    ///< commit, deck and ranks of each measurement
  int ranks_per_node = 8;              ///< which the fast links join
  double memory_bytes = 0;             ///< memory of a rank; 0: not known
  double launch_seconds = 0;           ///< between two kernels of a graph
  double network_latency_seconds = 0;  ///< between nodes
  double network_bytes_per_second =
      0;  ///< a rank's rate between nodes; 0: unknown, and all ranks are taken to be on one node
  /// A rank's rate from its host to its device while as much comes back; 0: not known.
  double host_bytes_per_second = 0;
  double storage_bytes_per_second = 0;       ///< that one rank writes to checkpoints; 0: not known
  std::map<std::string, double> peak_flops;  ///< by precision, dense
  /// The FLOP/s that a rank's power limit allows for long, by precision: a step with F FLOPs of ops
  /// and B bytes takes at least F / sustained_flops + B / sustained_bytes_per_second. Optional in a
  /// file; no limit if the precision or the bytes are missing.
  std::map<std::string, double> sustained_flops;
  double sustained_bytes_per_second = 0;
  /// The share of the speed of computation that a group's collective beside it takes: 0.12 of the
  /// data group's 16 of 132 multiprocessors; 1 if the same core does both.
  std::map<std::string, double> overlap_cost;
  std::map<std::string, std::vector<OpRow>> ops;  ///< by precision of the run
  std::vector<CollectiveRow> collectives;
};

/// Throws Error(usage) naming the file and what is wrong in it.
[[nodiscard]] MachineFile read_machine_file(const std::string& path);
/// The text that read_machine_file() reads: a row a line.
[[nodiscard]] std::string to_text(const MachineFile& machine);
/// Adds rows; rows of the same op and size, or the same collective, are replaced.
void merge(MachineFile& into, const MachineFile& measured);

}  // namespace hyperslab::plan
