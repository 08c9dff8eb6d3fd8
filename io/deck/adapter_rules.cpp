// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using nn::AdapterTarget;
using param::StorageFormat;
using train::Config;

bool targets(const Config& c, AdapterTarget target) {
  return std::ranges::find(c.adapter.targets, target) != c.adapter.targets.end();
}

bool rounds_tables(const Config& c) { return c.quantization.embeddings || c.quantization.head; }

/// The columns of the blocks' matrices on a rank; of those that tensor ranks cut by columns, the
/// rest.
std::vector<std::int64_t> columns(const Config& c) {
  const std::int64_t tensor = std::max(1, c.parallel.tensor);
  std::vector<std::int64_t> all = {c.model.width, c.model.query_width() / tensor};
  const nn::ExpertsConfig& experts = c.model.experts;
  if (experts.layers_of(c.model.layers) < c.model.layers) {
    all.push_back(c.model.ffn_width / tensor);
  }
  if (experts) all.push_back(experts.width / tensor);
  return all;
}

/// True if groups of so many columns fill the rows of every matrix of a block on a rank.
bool divides_columns(const Config& c, std::int64_t group) {
  return group % 2 == 0 &&
         std::ranges::all_of(columns(c), [&](auto K) { return divides(group, K); });
}
std::string columns_message(const Config& c, std::int64_t group) {
  const std::vector<std::int64_t> all = columns(c);
  return fmt::format(
      "groups of {} do not divide the columns of the blocks' matrices on a rank, {} and {}", group,
      fmt::join(all.begin(), all.end() - 1, ", "), all.back());
}

constexpr std::array kAdapterRules = {
    Rule{"adapter.rank", "adapter.targets adapter.dropout",
         "at least 1 if adapter.targets or adapter.dropout is given",
         [](const Config& c, const Surroundings&) {
           return c.adapter || (c.adapter.targets.empty() && c.adapter.dropout == 0);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "0 adds no adapters, and adapter.targets or adapter.dropout is given: set "
                  "adapter.rank to 1 or more (16 is usual), or leave the others out";
         }},
    Rule{"adapter.rank", "train.trainable", "0 if train.trainable is given",
         [](const Config& c, const Surroundings&) {
           return !c.adapter || c.train.trainable.empty();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "with adapters they alone are trained: leave train.trainable out, or set "
                  "adapter.rank to 0";
         }},
    Rule{"adapter.targets", "model.activation", "mlp.gate only with a gated activation",
         [](const Config& c, const Surroundings&) {
           return !targets(c, AdapterTarget::gate) || ops::is_gated(c.model.activation);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "mlp.gate is part of gated activations, which model.activation is not: leave it "
                  "out, or set model.activation to swiglu or geglu";
         }},
    Rule{"model.frozen_format", "adapter.rank", "compute without adapters",
         [](const Config& c, const Surroundings& s) {
           return c.model.frozen_format == StorageFormat::compute || c.adapter || !s.for_training;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} is for a base that adapters are added to: set adapter.rank, or "
               "leave model.frozen_format out",
               name_of(c.model.frozen_format));
         }},
    Rule{"model.frozen_format", "precision.compute", "bf16 only if precision.compute is bf16",
         [](const Config& c, const Surroundings&) {
           return c.model.frozen_format != StorageFormat::bf16 ||
                  c.precision.compute == Precision::bf16;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "products take operands of one dtype, and precision.compute is {}: "
               "set model.frozen_format to compute, int8 or nf4",
               name_of(c.precision.compute));
         }},
    Rule{"model.frozen_format", "model.width model.ffn_width experts.width parallel.tensor",
         "int4 and nf4 only if 64, the columns that share a scale, divide the columns of every "
         "matrix of a block on a rank",
         [](const Config& c, const Surroundings&) {
           const bool has_groups = c.model.frozen_format == StorageFormat::int4 ||
                                   c.model.frozen_format == StorageFormat::nf4;
           return !has_groups || divides_columns(c, ops::kNormalFloatGroup);
         },
         [](const Config& c, const Surroundings&) {
           return columns_message(c, ops::kNormalFloatGroup) + "; set model.frozen_format to int8";
         }},
    Rule{"quantization.group",
         "quantization.weights model.width model.ffn_width experts.width parallel.tensor",
         "with int4 an even number that divides the columns of every matrix of a block on a rank",
         [](const Config& c, const Surroundings&) {
           return c.quantization.weights != train::WeightBits::int4 ||
                  divides_columns(c, c.quantization.group);
         },
         [](const Config& c, const Surroundings&) {
           return columns_message(c, c.quantization.group) +
                  "; take another group, an even one, or int8";
         }},
    Rule{"quantization.weights", "adapter.rank", "none with adapters",
         [](const Config& c, const Surroundings&) { return !c.quantization || !c.adapter; },
         [](const Config&, const Surroundings&) -> std::string {
           return "adapters leave the matrices as they are: store them quantized with "
                  "model.frozen_format, or set adapter.rank to 0";
         }},
    Rule{"quantization.weights", "train.trainable", "none if matrices are not trained",
         [](const Config& c, const Surroundings& s) {
           return !c.quantization || !s.for_training || c.train.trainable.empty() ||
                  std::ranges::find(c.train.trainable, param::Role::matrix) !=
                      c.train.trainable.end();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "train.trainable leaves the matrices out, so that nothing learns from their "
                  "rounding: add matrix to it, or set quantization.weights to none";
         }},
    Rule{"quantization.activations", "quantization.weights", "dynamic-int8 only with int8 weights",
         [](const Config& c, const Surroundings&) {
           return c.quantization.activations == ops::ActivationFormat::none ||
                  c.quantization.weights == train::WeightBits::int8;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "products of integers need int8 on both sides: set quantization.weights to int8, "
                  "or quantization.activations to none";
         }},
    Rule{"quantization.head", "quantization.embeddings quantization.weights",
         "false without quantization.weights; nor quantization.embeddings",
         [](const Config& c, const Surroundings&) { return !rounds_tables(c) || c.quantization; },
         [](const Config&, const Surroundings&) -> std::string {
           return "embeddings and head get the bits of quantization.weights, which is none: set it "
                  "to int8 or int4, or leave quantization.embeddings and quantization.head out";
         }},
    Rule{"quantization.head", "quantization.embeddings model.family",
         "false for training and with family vit; nor quantization.embeddings",
         [](const Config& c, const Surroundings& s) {
           return !rounds_tables(c) || !c.quantization ||
                  (!s.for_training && !c.model.is_of_images());
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (c.model.is_of_images()) {
             return "a vision transformer has no table of tokens, and its head is small: leave "
                    "quantization.embeddings and quantization.head out";
           }
           return "fake quantization is of the blocks' matrices alone: leave "
                  "quantization.embeddings and quantization.head out, and round them with "
                  "checkpoint quantize --embeddings --head";
         }},
};

}  // namespace

std::span<const Rule> adapter_rules() { return kAdapterRules; }

}  // namespace hyperslab::deck
