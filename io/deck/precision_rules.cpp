// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;
using train::GemmPrecision;

/// The smaller side of the blocks' widest linear layer.
std::int64_t widest_layer(const Config& c) {
  return std::min(c.model.width, std::max(c.model.query_width(), c.model.ffn_width));
}

/// True if a step updates the matrices of the blocks.
bool trains_matrices(const Config& c) {
  const auto& roles = c.train.trainable;
  return !c.adapter &&
         (roles.empty() || std::ranges::find(roles, param::Role::matrix) != roles.end());
}

constexpr std::array kPrecisionRules = {
    Rule{"precision.compute", "run.device", "fp32 or bf16 on the CPU",
         [](const Config& c, const Surroundings& s) {
           return c.precision.compute == Precision::fp32 ||
                  c.precision.compute == Precision::bf16 || on_gpu(c, s);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} needs a GPU, and this run is on the CPU: set precision.compute to fp32 or bf16, "
               "or look at it without a GPU with plan --device cuda or train --dry-run",
               name_of(c.precision.compute));
         }},
    Rule{"precision.gradients", "precision.compute", "fp32 unless precision.compute is bf16",
         [](const Config& c, const Surroundings&) {
           return c.precision.gradients == Precision::fp32 ||
                  c.precision.compute == Precision::bf16;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "products in {} have gradients in fp32: set precision.compute to bf16, or "
               "precision.gradients to fp32",
               name_of(c.precision.compute));
         }},
    Rule{"precision.gradients", "adapter.rank", "fp32 with adapter.rank",
         [](const Config& c, const Surroundings&) {
           return c.precision.gradients == Precision::fp32 || !c.adapter;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "gradients of adapters are in fp32: leave precision.gradients or adapter.rank "
                  "out";
         }},
    Rule{"precision.gradients", "train.global_batch train.microbatch parallel.data",
         "fp32 if a step has several microbatches",
         [](const Config& c, const Surroundings&) {
           return c.precision.gradients == Precision::fp32 || c.train.microbatch <= 0 ||
                  c.microbatches() <= 1;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "a step of several microbatches adds their gradients up, which loses bits in "
                  "bf16: set train.microbatch to train.global_batch / parallel.data, or "
                  "precision.gradients to fp32";
         }},
    Rule{"precision.gemm", "precision.compute run.device",
         "compute unless precision.compute is bf16, or fp32 on the CPU",
         [](const Config& c, const Surroundings& s) {
           return !c.precision.fp8() || c.precision.compute == Precision::bf16 ||
                  (c.precision.compute == Precision::fp32 && !on_gpu(c, s));
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} rounds activations and gradients of bf16, and precision.compute is {}: set "
               "precision.compute to bf16, or precision.gemm to compute",
               name_of(c.precision.gemm), name_of(c.precision.compute));
         }},
    Rule{"precision.gemm", "model.frozen_format quantization.weights",
         "compute with quantization.weights and with model.frozen_format int8, int4 and nf4",
         [](const Config& c, const Surroundings&) {
           const auto format = c.model.frozen_format;
           return !c.precision.fp8() ||
                  (!c.quantization && (format == param::StorageFormat::compute ||
                                       format == param::StorageFormat::bf16));
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "quantized weights have products of their own: set precision.gemm to compute "
               "instead of {}, or leave quantization.weights and model.frozen_format out",
               name_of(c.precision.gemm));
         }},
    Rule{"precision.fp8_min_width", "precision.gemm model.width model.ffn_width",
         "at most the blocks' width unless precision.gemm is compute",
         [](const Config& c, const Surroundings&) {
           return !c.precision.fp8() || widest_layer(c) >= c.precision.fp8_min_width;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "no layer of the blocks has {} inputs and outputs, so that {} would do nothing: set "
               "precision.fp8_min_width to {} or less (products of so small matrices are often "
               "slower than those of precision.compute), or set precision.gemm to compute",
               c.precision.fp8_min_width, name_of(c.precision.gemm), widest_layer(c));
         }},
    Rule{"precision.fp8_keep_first", "precision.gemm precision.fp8_keep_last model.layers",
         "with precision.fp8_keep_last less than model.layers; both 0 if precision.gemm is compute",
         [](const Config& c, const Surroundings&) {
           const std::int64_t kept = c.precision.fp8_keep_first + c.precision.fp8_keep_last;
           return c.precision.fp8() ? kept < c.model.layers : kept == 0;
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (!c.precision.fp8()) {
             return "no block multiplies in 8-bit floats: set precision.gemm to fp8_tensor, "
                    "fp8_row or fp8_block, or leave precision.fp8_keep_first and "
                    "precision.fp8_keep_last out";
           }
           return fmt::format(
               "{} and precision.fp8_keep_last {} keep all of the {} blocks as they are: lower one "
               "of them, or set precision.gemm to compute",
               c.precision.fp8_keep_first, c.precision.fp8_keep_last, c.model.layers);
         }},
    Rule{"precision.fp8_cache_weights", "precision.gemm", "false if precision.gemm is compute",
         [](const Config& c, const Surroundings&) {
           return c.precision.fp8() || !c.precision.fp8_cache_weights;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "no weights are rounded to 8-bit floats: set precision.gemm to fp8_tensor, "
                  "fp8_row or fp8_block, or precision.fp8_cache_weights to false";
         }},
    Rule{"precision.fp8_param_gather", "precision.gemm",
         "false unless precision.gemm is fp8_tensor",
         [](const Config& c, const Surroundings&) {
           return !c.precision.fp8_param_gather || c.precision.gemm == GemmPrecision::fp8_tensor;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "with {} no FP8 values serve both a matrix and its transpose: set precision.gemm to "
               "fp8_tensor, or precision.fp8_param_gather to false",
               name_of(c.precision.gemm));
         }},
    Rule{"precision.fp8_param_gather", "precision.compute",
         "false unless precision.compute is bf16",
         [](const Config& c, const Surroundings&) {
           return !c.precision.fp8_param_gather || c.precision.compute == Precision::bf16;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "FP8 values take the place of 16-bit values, and precision.compute is {}: set it to "
               "bf16, or precision.fp8_param_gather to false",
               name_of(c.precision.compute));
         }},
    Rule{"precision.fp8_param_gather", "parallel.zero", "false with parallel.zero 0",
         [](const Config& c, const Surroundings&) {
           return !c.precision.fp8_param_gather || c.parallel.zero > 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "with parallel.zero 0 every rank updates all parameters and gathers none: set "
                  "parallel.zero to 1, 2 or 3, or precision.fp8_param_gather to false";
         }},
    Rule{"precision.fp8_param_gather", "adapter.rank train.trainable",
         "false with adapter.rank, and unless matrices are trained",
         [](const Config& c, const Surroundings&) {
           return !c.precision.fp8_param_gather || trains_matrices(c);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "the blocks' matrices are frozen, so that none are gathered: leave "
                  "precision.fp8_param_gather out";
         }},
    Rule{"precision.fp8_param_gather", "precision.fp8_cache_weights",
         "false with precision.fp8_cache_weights",
         [](const Config& c, const Surroundings&) {
           return !c.precision.fp8_param_gather || !c.precision.fp8_cache_weights;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "FP8 values that are gathered serve the whole step already: leave "
                  "precision.fp8_cache_weights out";
         }},
};

}  // namespace

std::span<const Rule> precision_rules() { return kPrecisionRules; }

}  // namespace hyperslab::deck
