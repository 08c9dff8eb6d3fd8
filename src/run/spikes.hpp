// SPDX-License-Identifier: Apache-2.0
// Steps whose loss or gradient norm is far above those before, and their treatment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "hyperslab/ops/step_state.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::run {

/// Mean and variance of a number, weighted exponentially (Finch 2009, section 9): the n-th value x
/// has the weight a = max(1 / n, 2 / (window + 1)), and with d = x - mean
///   mean += a d,  variance = (1 - a) (variance + a d^2).
struct RunningMoments {
  double mean = 0;
  double variance = 0;
  /// Standard deviations of `value` above the mean. A deviation below a thousandth of the mean
  /// counts as that much, so that a number that hardly moves has no spikes.
  [[nodiscard]] double z_score(double value) const;
  void add(double value, std::int64_t n, std::int64_t window);
};

/// Judges loss and gradient norm of every step in order, and keeps both out of the statistics if
/// one of them is a spike. After kMostInARow spikes in a row the level has changed: the statistics
/// begin again.
class SpikeDetector {
 public:
  static constexpr int kMostInARow = 10;

  struct Verdict {
    double loss_z = 0;
    double norm_z = 0;
    bool is_spike = false;
    bool begins_anew = false;
    [[nodiscard]] double z() const { return loss_z > norm_z ? loss_z : norm_z; }
  };
  struct State {
    std::int64_t seen = 0;  ///< steps in the statistics
    int in_a_row = 0;
    RunningMoments loss;
    RunningMoments norm;
  };

  explicit SpikeDetector(const train::SpikeConfig& config) : config_(config) {}
  /// z-scores and verdict; changes nothing. Nothing is a spike before the warm-up has ended.
  [[nodiscard]] Verdict look(double loss, double norm) const;
  /// Judges as look(), and takes the step into the statistics or counts the spike.
  Verdict judge(double loss, double norm);
  [[nodiscard]] const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  train::SpikeConfig config_;
  State state_;
};

/// The statistics of a run about its spikes. Fed alike on all ranks, it decides alike on all ranks.
class Spikes {
 public:
  /// A step that was a spike.
  struct Spike {
    std::int64_t step = 0;
    double loss = 0;  ///< nats per token
    double norm = 0;
    SpikeDetector::Verdict verdict;
    bool left_out = false;  ///< it updated nothing
  };

  explicit Spikes(const train::SpikeConfig& config) : config_(config), detector_(config) {}

  [[nodiscard]] train::SpikePolicy policy() const { return config_.policy; }
  /// True if the step's batch is left out because training went back for it.
  [[nodiscard]] bool leaves_out(std::int64_t step) const { return left_out_.contains(step); }
  /// Policy skip, before the update of a step whose numbers are finite: whether it is a spike.
  [[nodiscard]] bool judge_before_update(std::int64_t step, double loss, double norm);
  /// The result of every step in order.
  std::optional<Spike> take(const ops::StepResult& result);

  /// Training goes back, and does `step` again without its batch.
  void go_back_for(std::int64_t step);
  [[nodiscard]] std::int64_t roll_backs() const { return roll_backs_; }
  [[nodiscard]] std::int64_t spikes() const { return spikes_; }     ///< so far, of the whole run
  [[nodiscard]] std::int64_t left_out() const { return skipped_; }  ///< spikes that updated nothing

  /// For checkpoints: all of this after the newest step taken, one line. Empty: policy ignore.
  [[nodiscard]] std::string checkpoint_text() const;
  /// Goes on from a checkpoint; `text` may be empty. Steps to leave out are added to those that are
  /// known. Throws Error(checkpoint) if the text cannot be read.
  void restore(const std::string& text);
  /// The steps to leave out, for the run's directory: a start that resumes from before one of them
  /// reads this.
  [[nodiscard]] std::string left_out_text() const;
  /// `where`: the file or record that `text` is, for Error(checkpoint).
  void add_left_out(const std::string& text, const std::string& where);

 private:
  [[nodiscard]] bool is_counted(const ops::StepResult& result) const;

  train::SpikeConfig config_;
  SpikeDetector detector_;
  std::map<std::int64_t, SpikeDetector::Verdict> judged_;  // not taken yet
  std::set<std::int64_t> left_out_;
  std::int64_t roll_backs_ = 0;
  std::int64_t spikes_ = 0;
  std::int64_t skipped_ = 0;
};

}  // namespace hyperslab::run
