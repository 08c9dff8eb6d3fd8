// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hyperslab/model/cache_size.hpp"
#include "hyperslab/model/generation.hpp"
#include "hyperslab/nn/adapter_config.hpp"
#include "hyperslab/nn/context_group.hpp"
#include "hyperslab/nn/embedding.hpp"
#include "hyperslab/nn/expert_group.hpp"
#include "hyperslab/nn/fp8_config.hpp"
#include "hyperslab/nn/recompute.hpp"
#include "hyperslab/nn/tensor_group.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::model {

/// Contiguous units of the model that a rank runs without a transfer in between.
struct Chunk {
  int first_unit = 0;  ///< index in the model
  int units = 0;
  int slots = 1;  ///< microbatches whose activations are kept at once
};

/// The settings with which a rank runs its part of a model.
struct StageOptions {
  Dim B = 1;                  ///< microbatch
  Dim T = 1;                  ///< tokens of a sample on this rank
  std::vector<Chunk> chunks;  ///< empty: one, of the whole model
  bool training = true;       ///< false: no gradients are planned and all blocks share one slot
  Generation generation = Generation::none;
  CacheSize cache_size;         ///< room for texts that are continued; resolved() by the stage
  bool split_backward = false;  ///< backward comes in two parts, for the input and for weights
  nn::Recompute recompute = nn::Recompute::none;
  int recompute_layers = 0;  ///< with Recompute::full: blocks of this rank, the first ones; 0: all
  Home block_inputs = Home::device;  ///< memory where blocks that are computed again have inputs
  int host_layers = 0;  ///< with Home::host: blocks of this rank, the first ones; 0: all
  DType compute = DType::f32;
  bool bf16_gradients = false;  ///< gradients of parameters are bf16, if computing in bf16
  bool documents = false;       ///< tokens attend to their own document alone: Batch::first_keys
  bool fused_attention = true;  ///< if the model leaves the choice: scores are not kept
  float z_loss = 0;             ///< weight in a training pass, see ops::LossRows
  nn::HeadLoss loss;            ///< a training pass' loss
  std::uint64_t seed = 0;       ///< seed of initial values and dropout
  nn::TensorGroup tensor;
  nn::ContextGroup context_group;
  nn::ExpertGroup expert_group;
  mesh::Position position;                 ///< this rank's place on the mesh
  std::vector<param::Role> trained_roles;  ///< the others are frozen; empty: all are trained
  nn::AdapterConfig adapter;               ///< if there are adapters, they alone are trained
  nn::Fp8Config fp8;
  param::MatrixStorage storage;  ///< formats of matrices, if not their values' own
  Dim vocabulary_multiple = 1;   ///< the vocabulary is padded to a multiple of it on every rank
  std::size_t bucket_bytes = 16U << 20;
  std::size_t logits_bytes = 32U << 20;  ///< largest chunk of logits, unless loss_rows says it
  Dim loss_rows = 0;                     ///< most rows whose logits exist at once; 0: logits_bytes
  Dim mlp_rows = 0;                      ///< nn::BlockConfig::mlp_rows

  /// The dtype of norms, attention and sums: f32, or f64 if computing in f64.
  [[nodiscard]] DType statistics() const { return compute == DType::f64 ? DType::f64 : DType::f32; }
  /// The dtype of the gradients of parameters.
  [[nodiscard]] DType gradients() const {
    return bf16_gradients && compute == DType::bf16 ? DType::bf16 : statistics();
  }
};

}  // namespace hyperslab::model
