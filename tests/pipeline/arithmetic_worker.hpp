// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/pipeline/executor.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// Global stage g of a model that is arithmetic on small integers, exact in f64.
inline double factor(int stage) { return 1 + stage % 2; }
inline double sum(int stage) { return stage + 1; }
inline double input_of(int microbatch, Dim i) {
  return 10 * microbatch + static_cast<double>(i % 7);
}
inline double loss_gradient(int microbatch, Dim i) {
  return microbatch + 1 + static_cast<double>(i % 3);
}

/// y = factor x + sum, dx = factor dy, and a "weight gradient" that adds up dy x. What a slot holds
/// is destroyed when the slot becomes free.
class ArithmeticWorker : public pipeline::Worker {
 public:
  /// `shared`: both gradients of a slot are the same memory.
  ArithmeticWorker(const pipeline::Program& program, int rank, Dim n, bool shared)
      : program_(program), rank_(rank), shared_(shared) {
    for (int chunk = 0; chunk < program.virtual_stages; ++chunk) {
      auto& slots = chunks_.emplace_back();
      for (int s = 0; s < program.slot_count(rank, chunk); ++s) slots.emplace_back(n);
      weight_gradients_.emplace_back(n, 0.0);
      outputs_.emplace_back(n, 0.0);
    }
  }

  void forward(int chunk, int slot, int microbatch) override {
    pause();
    Buffers& mine = at(chunk, slot);
    const int stage = program_.global_stage(rank_, chunk);
    for (Dim i = 0; i < size(mine); ++i) {
      double& x = element(mine.input, i);
      if (stage == 0) x = input_of(microbatch, i);
      const double y = factor(stage) * x + sum(stage);
      element(mine.output, i) = y;
      sums(outputs_, chunk)[static_cast<std::size_t>(i)] += y * (microbatch + 1);
    }
    if (program_.schedule == pipeline::Schedule::forward_only) destroy(mine.input);
  }

  void backward(int chunk, int slot, int microbatch) override {
    backward_input(chunk, slot, microbatch);
    backward_weight(chunk, slot, microbatch);
  }

  void backward_input(int chunk, int slot, int microbatch) override {
    pause();
    Buffers& mine = at(chunk, slot);
    const int stage = program_.global_stage(rank_, chunk);
    for (Dim i = 0; i < size(mine); ++i) {
      double dy = element(mine.output_gradient, i);
      if (program_.is_last(rank_, chunk)) dy = loss_gradient(microbatch, i);
      element(mine.kept, i) = dy;
      element(shared_ ? mine.output_gradient : mine.input_gradient, i) = factor(stage) * dy;
    }
    if (!shared_) destroy(mine.output_gradient);
  }

  void backward_weight(int chunk, int slot, int /*microbatch*/) override {
    pause();
    Buffers& mine = at(chunk, slot);
    for (Dim i = 0; i < size(mine); ++i) {
      sums(weight_gradients_, chunk)[static_cast<std::size_t>(i)] +=
          element(mine.kept, i) * element(mine.input, i);
    }
    destroy(mine.input);
    destroy(mine.kept);
  }

  View input(int chunk, int slot) override { return at(chunk, slot).input.view(); }
  CView output(int chunk, int slot) override { return at(chunk, slot).output.view(); }
  View output_gradient(int chunk, int slot) override {
    return at(chunk, slot).output_gradient.view();
  }
  CView input_gradient(int chunk, int slot) override {
    Buffers& mine = at(chunk, slot);
    return shared_ ? mine.output_gradient.view() : mine.input_gradient.view();
  }

  [[nodiscard]] const std::vector<double>& weight_gradients(int chunk) const {
    return weight_gradients_[static_cast<std::size_t>(chunk)];
  }
  /// Summed over microbatches, each (microbatch + 1)-fold.
  [[nodiscard]] const std::vector<double>& outputs(int chunk) const {
    return outputs_[static_cast<std::size_t>(chunk)];
  }

 protected:
  /// Called in every pass.
  virtual void pause() {}

 private:
  struct Buffers {
    explicit Buffers(Dim n)
        : input(filled(n)),
          output(filled(n)),
          output_gradient(filled(n)),
          input_gradient(filled(n)),
          kept(filled(n)) {}
    Tensor input;
    Tensor output;
    Tensor output_gradient;
    Tensor input_gradient;
    Tensor kept;
  };
  static Tensor filled(Dim n) {
    return filled_tensor(DType::f64, {n}, std::numeric_limits<double>::quiet_NaN());
  }
  static double& element(Tensor& tensor, Dim i) { return tensor.view().data<double>()[i]; }
  static std::vector<double>& sums(std::vector<std::vector<double>>& all, int chunk) {
    return all[static_cast<std::size_t>(chunk)];
  }
  [[nodiscard]] static Dim size(const Buffers& mine) { return mine.input.view().numel(); }
  static void destroy(Tensor& tensor) {
    for (double& x : tensor.view().span<double>()) x = std::numeric_limits<double>::quiet_NaN();
  }
  Buffers& at(int chunk, int slot) {
    return chunks_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(slot)];
  }

  const pipeline::Program& program_;
  int rank_;
  bool shared_;
  std::vector<std::vector<Buffers>> chunks_;
  std::vector<std::vector<double>> weight_gradients_;
  std::vector<std::vector<double>> outputs_;
};

/// What a chunk's sums are when all microbatches went through all stages once.
struct Expected {
  std::vector<double> outputs;
  std::vector<double> weight_gradients;
};

inline Expected expected(const pipeline::Program& program, int stage, Dim n) {
  Expected all{std::vector<double>(static_cast<std::size_t>(n)),
               std::vector<double>(static_cast<std::size_t>(n))};
  for (int m = 0; m < program.microbatches; ++m) {
    for (Dim i = 0; i < n; ++i) {
      double x = input_of(m, i);
      for (int g = 0; g < stage; ++g) x = factor(g) * x + sum(g);
      double dy = loss_gradient(m, i);
      for (int g = program.global_stages() - 1; g > stage; --g) dy *= factor(g);
      all.outputs[static_cast<std::size_t>(i)] += (factor(stage) * x + sum(stage)) * (m + 1);
      all.weight_gradients[static_cast<std::size_t>(i)] += dy * x;
    }
  }
  return all;
}

}  // namespace hyperslab::test
