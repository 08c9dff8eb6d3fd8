// SPDX-License-Identifier: Apache-2.0
// When a run saves, what it removes for that, and when it does not save.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "finite_steps.hpp"
#include "run_data.hpp"
#include "run_records.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// Rank 0: saved steps that this start goes back from, because it resumes from an earlier one. They
/// are of an attempt that training abandoned, and stay until this start saves a newer step itself.
[[nodiscard]] std::vector<std::int64_t> abandoned_steps(const Start& start,
                                                        std::int64_t first_step);

class CheckpointPolicy {
 public:
  struct Parts {
    const Start& start;
    const RunData& data;
    train::Trainer& trainer;
    RunRecords& records;
    const ops::AlgorithmCache& algorithms;  ///< in use, to be kept
    std::vector<std::int64_t> abandoned;    ///< of rank 0: abandoned_steps()
  };
  CheckpointPolicy(Parts parts, std::int64_t first_step);

  /// The result of every step in order. Throws Error(numerics), the same on all ranks, after too
  /// many steps in a row that were not finite.
  void add(const ops::StepResult& result);
  /// Whether the deck asks for a checkpoint after the step, or one waits for a finite step.
  [[nodiscard]] bool is_due_after(std::int64_t step) const;
  /// Saves the state after `step`, the newest that was enqueued and added, unless a number of it is
  /// not finite, and removes what the deck does not keep. Collective. Throws Error(storage), and
  /// Error(numerics) after too many saves in a row that wrote nothing.
  void save(std::int64_t step) { save(step, false); }
  /// At the end of a start: saves if the run has not come to its last step, or a checkpoint waits.
  void save_at_end(std::int64_t step);

 private:
  [[nodiscard]] bool is_regular(std::int64_t step) const;
  void save(std::int64_t step, bool at_end);
  [[nodiscard]] bool may_save(std::int64_t step, bool at_end);
  [[nodiscard]] bool holds_finite_values(std::int64_t step, const std::vector<io::Slab>& slabs);
  [[nodiscard]] io::CheckpointMeta meta_of(std::int64_t step) const;
  void prune(std::int64_t step);
  [[nodiscard]] std::optional<std::int64_t> newest_proven() const;
  [[nodiscard]] std::string advice_to_go_back() const;
  [[nodiscard]] Error numerics_error(const ops::StepResult& result) const;
  [[nodiscard]] Error save_error(const std::string& tensor, std::int64_t step) const;

  Parts parts_;
  std::int64_t first_step_;
  FiniteSteps finite_;
};

}  // namespace hyperslab::run
