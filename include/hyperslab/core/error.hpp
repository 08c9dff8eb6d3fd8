// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace hyperslab {

/// The exit code of the process; the numbers are a promise to users' scripts.
enum class ExitCode : std::uint8_t {
  ok = 0,
  internal = 1,    ///< a broken promise of our own code
  usage = 2,       ///< deck, command line, layout
  data = 3,        ///< token files, vocabularies, text
  checkpoint = 4,  ///< missing, damaged or foreign checkpoint
  storage = 5,     ///< unwritable, full or failing storage
  device = 6,      ///< GPU, driver or NCCL environment
  numerics = 7,    ///< not-a-number or infinity that does not go away
  hang = 8,        ///< a lost or silent peer, found by our watchdog
  preempted = 75,  ///< stopped on request after a checkpoint
};

/// The only exception type of the project. `what()` is one line for the user: what happened, where,
/// what was expected and found, what to do. Only main() turns it into an exit.
class Error : public std::runtime_error {
 public:
  explicit Error(ExitCode code, const std::string& message,
                 std::source_location where = std::source_location::current());

  [[nodiscard]] ExitCode code() const { return code_; }
  /// Marks an error that every rank throws at the same point: it is printed once, and no rank
  /// aborts the others.
  [[nodiscard]] Error on_all_ranks() const {
    Error copy = *this;
    copy.on_all_ranks_ = true;
    return copy;
  }
  [[nodiscard]] bool is_on_all_ranks() const { return on_all_ranks_; }
  /// This error with its coordinates in the run, "data 0, tensor 1, pipeline 1", and the step (0:
  /// none).
  [[nodiscard]] Error in_run(std::string coordinates, std::int64_t step) const {
    Error copy = *this;
    copy.coordinates_ = std::move(coordinates);
    copy.step_ = step;
    return copy;
  }
  [[nodiscard]] const std::string& coordinates() const { return coordinates_; }
  [[nodiscard]] std::int64_t step() const { return step_; }

  /// The line that threw it; shown to the user only for internal errors.
  [[nodiscard]] const std::source_location& where() const { return where_; }

 private:
  ExitCode code_;
  std::source_location where_;
  bool on_all_ranks_ = false;
  std::string coordinates_;
  std::int64_t step_ = 0;
};

/// Throws an internal Error if `condition` is false.
void require(bool condition, const char* message,
             std::source_location where = std::source_location::current());

}  // namespace hyperslab
