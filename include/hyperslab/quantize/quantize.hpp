// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/quantize/gptq.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::quantize {

/// The error models of the inputs of every matrix of the blocks, by the checkpoint's name of the
/// tensor; tensors that are multiplied by the same inputs share one.
class Calibration {
 public:
  /// Runs the first `samples` of the deck's training data through the model. One rank. Throws as
  /// TrainerState::load and io::open_data do.
  Calibration(comm::World& world, const train::Config& config, const io::CheckpointReader& reader,
              std::int64_t samples, const plan::IsLegal& is_legal);
  /// Tokens that were seen.
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// False for tables, and for experts that no token took.
  [[nodiscard]] bool has(const std::string& tensor) const { return of_tensor_.contains(tensor); }
  /// The matrices of experts that no token took, and so are rounded to the nearest.
  [[nodiscard]] std::int64_t unseen() const { return unseen_; }
  [[nodiscard]] const ErrorModel& errors_of(const std::string& tensor);

 private:
  struct Inputs {
    std::vector<double> products;  ///< X^T X
    Dim columns = 0;
  };
  std::vector<Inputs> inputs_;
  std::map<std::string, std::size_t> of_tensor_;
  std::int64_t tokens_ = 0;
  std::int64_t unseen_ = 0;
  std::size_t factored_ = SIZE_MAX;  ///< whose factor is kept
  std::unique_ptr<ErrorModel> errors_;
};

/// The sizes of a quantized checkpoint.
struct Sizes {
  std::int64_t elements = 0;  ///< elements of the blocks' matrices
  std::uint64_t bytes = 0;    ///< bytes of their codes and scales
  double squared_error = 0;   ///< sums over the matrices' elements
  double squared_weights = 0;
  std::int64_t all_elements = 0;   ///< elements of all parameters
  std::uint64_t few_bytes = 0;     ///< bytes of all codes and scales
  std::int64_t kept_elements = 0;  ///< elements of parameters that are kept as they are
};

/// The matrices to round and their format.
struct Rounding {
  param::QuantizationSpec spec;
  bool embeddings = false;   ///< the table of tokens, besides the blocks' matrices
  bool head = false;         ///< the head, likewise; a tied table is both
  DType first = DType::f32;  ///< rounded to it before: the dtype in which the run computed
  Calibration* calibration = nullptr;  ///< for the blocks' matrices; null: rounds to the nearest
};

/// True if `tensor` of a checkpoint is a matrix of a block.
[[nodiscard]] bool is_matrix(const std::string& tensor);

/// Writes a checkpoint in `output` that holds rounded matrices as `tensor`.codes and
/// `tensor`.scales (see ops::BasicQuantizedMatrix) and every other parameter as it is. `meta`: of
/// the new checkpoint. One rank.
Sizes write_quantized(const io::CheckpointReader& reader, const io::CheckpointMeta& meta,
                      const Rounding& rounding, const std::string& output);

}  // namespace hyperslab::quantize
