// SPDX-License-Identifier: Apache-2.0
// Why this start of a run should end before its last step: a signal, or the time that it has.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace hyperslab::run {

/// When the process has to be gone, on the clock of now_seconds().
struct TimeLimit {
  double end = std::numeric_limits<double>::infinity();
  double whole_seconds = 0;  ///< from the start of the process to `end`
  std::string source;        ///< "run.walltime_minutes", "the job's time limit (Slurm)"
};

/// The earlier of run.walltime_minutes and of the job's end that Slurm gives, if this process
/// belongs to one. Slurm is asked once, by SLURM_JOB_END_TIME or the command squeue, so a limit
/// that is changed later is not seen. `started`: of the process, on the clock of now_seconds().
[[nodiscard]] TimeLimit time_limit(double walltime_minutes, double started);

/// Seconds that "1-02:03:04", "02:03:04", "03:04" or "4" mean (minutes and seconds if there is one
/// colon), as squeue prints %L; negative for anything else, such as "UNLIMITED".
[[nodiscard]] double seconds_of_slurm_time(const std::string& text);

/// Asked for by this process; ranks agree through the step's flag. The time limit is rank 0's.
class StopRequest {
 public:
  /// `signal`: the newest that was caught, 0: none; may be null.
  StopRequest(const volatile int* signal, TimeLimit limit);

  /// Sets the seconds of the first save, until one has been seen.
  void expect_save(double seconds) { save_seconds_ = seconds; }
  /// A save took so long, from its beginning until it was complete on disk, in the step or beside
  /// it.
  void note_save(double seconds);
  /// Seconds between two steps that belong to neither: a validation, or training's wait for a
  /// save.
  void note_pause(double seconds) { pause_seconds_ += seconds; }
  /// The host calls for a step at `now`.
  void begin_step(double now);

  [[nodiscard]] bool is_signalled() const { return signal_ != nullptr && *signal_ != 0; }
  /// A signal came, or the rest of the time is needed to stop: for the steps in progress, a
  /// save and a margin. Time never stops a start that has begun no step.
  [[nodiscard]] bool is_asked(double now) const { return is_signalled() || is_out_of_time(now); }
  /// "on request (SIGUSR1)", or the rest of the time and its limit.
  [[nodiscard]] std::string reason(double now) const;
  /// Seconds before the end of the limit at which stopping has to begin.
  [[nodiscard]] double reserve_seconds() const;

 private:
  [[nodiscard]] bool is_out_of_time(double now) const {
    return begun_steps_ > 0 && limit_.end - now <= reserve_seconds();
  }

  const volatile int* signal_;
  TimeLimit limit_;
  std::int64_t begun_steps_ = 0;
  double last_begin_ = 0;
  double pause_seconds_ = 0;  // since then
  double longest_step_ = 0;
  double save_seconds_ = 0;  // the longest
  bool has_saved_ = false;
};

}  // namespace hyperslab::run
