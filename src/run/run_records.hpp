// SPDX-License-Identifier: Apache-2.0
// Records of a run's steps: metrics, timings, norms, traces, and lines for the user.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "device_trace.hpp"
#include "hyperslab/comm/clock_offset.hpp"
#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/io/tensorboard.hpp"
#include "hyperslab/io/timing.hpp"
#include "norms.hpp"
#include "report.hpp"
#include "resume.hpp"
#include "run_data.hpp"
#include "spikes.hpp"
#include "start.hpp"
#include "step_clock.hpp"
#include "utilization.hpp"

namespace hyperslab::run {

/// The setting of a run on this rank, for the records of its steps.
struct RunSetting {
  std::string device;                                ///< "cpu", or the name of the GPU
  mesh::Position position;                           ///< this rank's
  std::map<comm::GroupRole, comm::Traffic> traffic;  ///< planned, of one step, by group
};

class RunRecords {
 public:
  /// Opens the files of this start in the run's directory and logs the model and its training.
  /// Collective. Throws Error(storage).
  RunRecords(const Start& start, const RunData& data, train::Trainer& trainer, RunSetting setting,
             const ResumePoint& point);

  /// The host calls for a step now. Collective if the step is traced: then clocks are compared.
  void begin_step(std::int64_t step, bool traced);
  /// The trace and the norms of the step that was just enqueued, if they are due.
  void note_enqueued(std::int64_t step);
  /// A step whose result was read, in order. `documents`: of its tokens on this rank.
  void take(const ops::StepResult& result, const StepTimes& times, const KeyShares& documents,
            const std::optional<Spikes::Spike>& spike);
  /// Goes with the metrics of the next step that is taken.
  void note_validation(const train::Evaluation& evaluation);
  /// The newest step that was taken is charged with a checkpoint.
  void charge_checkpoint(double seconds);
  /// Ends a live line on the terminal, so that a log line stands alone.
  void finish_line() { progress_->finish_line(); }
  /// Writes out everything.
  void finish();

  [[nodiscard]] double seconds() const { return now_seconds() - started_; }  ///< time of this start
  [[nodiscard]] double wall_seconds() const { return earlier_seconds_ + seconds(); }
  [[nodiscard]] double last_loss() const { return last_loss_; }  ///< the newest step's
  /// Bytes of this rank at the peak, over the steps of this start.
  [[nodiscard]] std::int64_t memory_peak() const { return memory_peak_; }

 private:
  [[nodiscard]] std::string open_first_ranks_files(std::int64_t first_step);
  void keep_deck(const std::string& start_folder) const;
  void open_timing(const std::string& folder);
  void log_run();
  void record(std::int64_t step, const StepTimes& times);
  void account_on_gpu(io::TimingRow& row) const;
  void record_trace(std::int64_t step);
  void record_device(std::int64_t step);
  void report(const ops::StepResult& result, double step_seconds, const KeyShares& documents,
              const std::optional<Spikes::Spike>& spike);
  void put_utilization(const KeyShares& documents, io::MetricsLine& line);
  void flush_row();

  const Start& start_;
  const RunData& data_;
  train::Trainer& trainer_;
  RunSetting setting_;
  std::unique_ptr<io::MetricsLog> metrics_;          // rank 0's
  std::unique_ptr<io::TensorboardLog> tensorboard_;  // rank 0's, if the deck asks for it
  std::unique_ptr<NormsLog> norms_;                  // rank 0's
  std::unique_ptr<io::TimingWriter> timing_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<DeviceTrace> device_trace_;  // on a GPU
  StepClock clock_;
  comm::ClockOffset clock_offset_;                    // measured in the newest traced step
  std::optional<train::TextAmount> validation_text_;  // absent if the vocabulary does not show it
  std::optional<io::MetricsLine::Validation> validation_;
  std::optional<io::TimingRow> row_;  // the newest step's, until its checkpoint is written
  Utilization utilization_;
  double flops_full_ = 0;  // FLOP of a step, with all of attention
  double started_ = 0;
  double earlier_seconds_ = 0;  // time of earlier starts
  double last_loss_ = 0;
  std::int64_t memory_peak_ = 0;
};

}  // namespace hyperslab::run
