// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "hyperslab/comm/group_role.hpp"
#include "hyperslab/core/profiler.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/io/line_log.hpp"

namespace hyperslab::io {

/// A group of the mesh that the rank is in: data, tensor, pipeline, shard, replica, world and, if
/// the rank has them, context, tied, key_value and three of experts.
struct GroupInfo {
  comm::GroupRole role = comm::GroupRole::other;
  int size = 1;                 ///< ranks
  std::vector<int> ranks = {};  ///< ranks of the world, in the order of the members
};
inline constexpr std::size_t kMostGroups = 12;

/// Traffic of one group in a step, all kinds of calls together. Bytes count the buffers handed in.
/// On the CPU seconds are from calls to their ends, of operations that were waited for in the
/// step, and exposed_seconds the host's in waits (see comm::Traffic). On a GPU seconds are the
/// device's, late by some steps: of gradient reductions for the data group, of all operations
/// for the others if timing.groups asks for them; exposed_seconds come from phases: reduce_exposed
/// for data (with the sums of tied tables in it), tensor_comm for tensor, context_comm for context,
/// expert_comm for expert, pipeline_comm and pipeline_idle for pipeline, wait for the world.
/// arrival_seconds, on the CPU, is when this rank called, a mean over the group's operations in the
/// step, in seconds since it left the newest operation of all ranks together before the step: ranks
/// leave that at one moment, so that the member with the largest is the one the others wait for,
/// whatever their clocks say. NaN if not measured.
struct GroupTraffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  double exposed_seconds = 0;
  double arrival_seconds = 0;
};
using GroupTraffics = std::array<GroupTraffic, kMostGroups>;

/// Attributes of a rank's timing file.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  std::string host;
  std::string device;
  int data = 0;
  int pipeline = 0;
  int context = 0;
  int tensor = 0;
  std::string commit;
  std::string start_time;  ///< ISO 8601, UTC: a label, never used for differences
  int threads = 1;         ///< threads of the rank's CPU ops
  int cores = 1;           ///< cores that the ranks of its host may use together
  std::string schedule;    ///< name of the pipeline schedule
  int zero = 0;
  bool sequence = false;
  std::vector<GroupInfo> groups = {};  ///< at most kMostGroups
  /// Layers with experts whose loads the file has, and experts of each; 0: no table of loads.
  std::int64_t expert_layers = 0;
  std::int64_t experts = 0;
};

/// A traced step on this rank's clock, and the numbers that make one clock of all ranks' clocks.
struct TracedStep {
  std::int64_t step = 0;
  double start_seconds = 0;         ///< on this rank's monotonic clock
  double clock_offset_seconds = 0;  ///< to be added, for rank 0's
  double clock_error_seconds = 0;   ///< largest possible error of the offset
  std::int64_t lost = 0;            ///< events, operations and messages that found no room
};

/// The time that an allocation of an arena was in use on a traced step. An allocation that several
/// microbatches use one after the other has a life for each.
struct AllocationLife {
  std::string category;    ///< parameters, gradients, optimizer, activations or workspace
  std::string label;       ///< "blocks.3.mlp.hidden"
  int layer = -1;          ///< layer of the model; -1: of none or of all
  int slot = -1;           ///< that holds a microbatch; -1: of the step
  std::int64_t bytes = 0;  ///< with the gap to the next allocation
  double start_seconds = 0;
  double end_seconds = 0;  ///< both since the step began
};

/// A row of /steps: the recorder's times and the trainer's own numbers.
struct TimingRow {
  StepTimes times;
  std::int64_t tokens = 0;  ///< tokens that this rank trained on
  std::int64_t memory_peak_bytes = 0;
  std::int64_t memory_now_bytes = 0;
  GroupTraffics groups{};  ///< in the order of RankInfo::groups
};

/// Writes rank_<5 digits>.h5 in a folder of this start: group /steps with one dataset per column,
/// and for traced steps /traced, /events, /operations, /messages, /memory, /lives and /kernels;
/// /experts with the loads of experts, if RankInfo names them.
/// Rows are buffered and appended every `flush_rows`, so that a crash loses little. Columns: step,
/// step_seconds, data_seconds, forward_seconds, backward_seconds, optimizer_seconds,
/// reduce_seconds, reduce_exposed_seconds, reduce_busy_seconds, tensor_comm_seconds,
/// context_comm_seconds, expert_comm_seconds, pipeline_comm_seconds, pipeline_idle_seconds,
/// wait_seconds, checkpoint_seconds, tokens, memory_peak_bytes, memory_now_bytes.
///
/// Gradient reductions: reduce_busy_seconds is time with at least one of their reductions in
/// progress, reduce_exposed_seconds the part of it in which the rank had nothing to do but wait for
/// their ends, after all members of the group had come to the wait; never more than
/// reduce_busy_seconds. wait_seconds: for slower ranks, that is in the sum of the step's scalars
/// over all ranks, which moves next to nothing, and on the CPU in gradient reductions before all
/// members had come. A GPU does not see who is late in a reduction: there such waiting is in
/// reduce_exposed_seconds, and is a rank's time beyond the least of its data group in the same
/// step (analysis/ splits it so). Waits for tensor and pipeline partners are in the columns of
/// their own.
///
/// /groups/<name>, with the attribute `size`, has a row for each row of /steps in
/// calls, bytes, seconds, exposed_seconds, arrival_seconds, and the world ranks of its members in
/// `ranks` (not for the world). The constructor throws Error(storage) if the file
/// cannot be written. After that a failure of the disk is a warning: rows stay in memory (up to
/// 64 MiB), every flush tries again, and the file holds the rows of the newest successful flush.
/// Without locks: other programs may read the file up to that flush while the run goes on.
class TimingWriter {
 public:
  TimingWriter(const std::string& folder, const RankInfo& info, std::size_t flush_rows = 50);
  TimingWriter(TimingWriter&&) noexcept;
  TimingWriter& operator=(TimingWriter&&) noexcept;
  TimingWriter(const TimingWriter&) = delete;
  TimingWriter& operator=(const TimingWriter&) = delete;
  ~TimingWriter();  ///< flushes; says how many rows are lost

  void append(const TimingRow& row);
  /// Loads of all layers with experts, (expert_layers, experts); flushed with the rows of steps.
  void append_loads(std::int64_t step, std::span<const double> loads);
  void append_traced(const TracedStep& traced);
  void append_events(std::int64_t step, const std::vector<TraceEvent>& events);
  void append_operations(std::int64_t step, const std::vector<TraceOperation>& operations);
  /// `groups`: in which `peer` of a message is a member.
  void append_messages(std::int64_t step, const std::vector<TraceMessage>& messages,
                       const std::vector<GroupInfo>& groups);
  /// `step_start`: on the host's monotonic clock.
  void append_kernels(std::int64_t step, const std::vector<DeviceEvent>& events, double step_start);
  void append_lives(std::int64_t step, const std::vector<AllocationLife>& lives);
  /// A change of memory in use on a traced step; seconds since the step began.
  void append_memory(std::int64_t step, double seconds, std::int64_t bytes,
                     const std::string& label);
  void flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// runs/<name>/timing/start_NNNN for the next start; creates it. Rank 0 only.
[[nodiscard]] std::string next_start_folder(const std::string& run_directory);

/// Figures that follow from a loss of text.
struct TextMetrics {
  double perplexity = 0;
  double token_accuracy = 0;
  std::optional<double> bits_per_byte = {};  ///< if the vocabulary gives the bytes of the text
};
/// Figures of images: shares whose class is the likeliest, and among the five likeliest.
struct ImageMetrics {
  double top1 = 0;
  double top5 = 0;
};
/// Figures of a clipped loss.
struct PolicyMetrics {
  double clipped = 0;             ///< share of counted tokens whose ratio was clipped
  std::optional<double> kl = {};  ///< mean divergence from the reference, nats, if it is trained
};
/// Figures of a text whose loss is no mean of log-probabilities.
struct AccuracyMetrics {
  double token_accuracy = 0;
};
/// Figures of a loss of pairs.
struct PreferenceMetrics {
  double preferred = 0;  ///< share of pairs whose chosen answer gained more than the other
};
using LossMeaning =
    std::variant<TextMetrics, ImageMetrics, PolicyMetrics, PreferenceMetrics, AccuracyMetrics>;

/// A line of metrics.jsonl, docs/files.md explains the keys.
struct MetricsLine {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;  ///< seen so far, over all starts
  double step_seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;
  double mfu_full = 0;
  LossMeaning meaning;
  double images_per_second = 0;  ///< with a model of images only
  double wall_seconds = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t memory_peak_bytes = 0;  ///< peak of rank 0, as in its timing file
  struct Validation {
    double loss = 0;
    LossMeaning meaning;
  };
  std::optional<Validation> validation;
  std::optional<double> z_loss;  ///< nats per token, with train.z_loss
  /// With experts: experts x the sum of an expert's share of a sample's tokens and its mean score;
  /// 1: all loads are equal. Means over samples and layers.
  std::optional<double> balance;
  std::optional<double> load_max;        ///< largest load of an expert / the mean of its layer
  std::optional<double> router_entropy;  ///< nats; mean of the entropy of a token's scores
  std::optional<double> rows_beyond;     ///< rows of experts in further parts, with expert ranks
  std::optional<double> router_z;  ///< mean log(Z)^2 of routers' logits, with experts.z_weight
  std::optional<double> spike;     ///< the largest z-score of a step that was a spike
  bool left_out = false;           ///< the step updated nothing because of a spike
};

/// The numbers of a line but its step, by the keys of metrics.jsonl.
[[nodiscard]] std::vector<std::pair<std::string_view, double>> scalars_of(const MetricsLine& line);

/// Appends lines to metrics.jsonl as LineLog does. Not-a-number is written as null. Rank 0 only.
class MetricsLog {
 public:
  MetricsLog(const std::string& path, std::int64_t first_step) : lines_(path, first_step) {}
  void append(const MetricsLine& line);

 private:
  LineLog lines_;
};

}  // namespace hyperslab::io
