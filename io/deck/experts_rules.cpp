// SPDX-License-Identifier: Apache-2.0
// Rules of mixtures of experts.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nearest.hpp"
#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

bool has_experts(const Config& c) { return c.model.experts.count > 0; }

/// Experts of the groups that a token may use.
std::int64_t choices_of_token(const Config& c) {
  const nn::ExpertsConfig& experts = c.model.experts;
  return experts.active_groups * (experts.count / std::max<std::int64_t>(1, experts.groups));
}

/// The divisors of the number of experts that data ranks can hold, too.
std::string nearest_expert(const Config& c) {
  return nearest_divisors(c.model.experts.count, c.parallel.expert, [&](std::int64_t ranks) {
    return divides(ranks, c.parallel.data) && divides(ranks, c.parallel.data_shards());
  });
}

constexpr std::array kLayoutRulesOfExperts = {
    Rule{"parallel.tensor", "experts.count experts.width", "divides experts.width",
         [](const Config& c, const Surroundings&) {
           return !has_experts(c) || divides(c.parallel.tensor, c.model.experts.width);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} ranks cannot share an expert's width of {}; nearest: {}",
                              c.parallel.tensor, c.model.experts.width,
                              nearest_divisors(c.model.experts.width, c.parallel.tensor));
         }},
    Rule{"parallel.expert", "experts.count", "divides experts.count",
         [](const Config& c, const Surroundings&) {
           return c.parallel.expert == 1 ||
                  (has_experts(c) && divides(c.parallel.expert, c.model.experts.count));
         },
         [](const Config& c, const Surroundings&) {
           if (!has_experts(c)) return std::string("there are no experts: set it to 1");
           return fmt::format("{} ranks cannot share {} experts equally; nearest: {}",
                              c.parallel.expert, c.model.experts.count, nearest_expert(c));
         }},
    Rule{"parallel.expert_exchange", "parallel.expert run.device",
         "auto or all_gather on GPUs with parallel.expert above 1",
         [](const Config& c, const Surroundings& s) {
           return c.parallel.expert == 1 || !on_gpu(c, s) ||
                  c.parallel.expert_exchange != mesh::ExchangeKind::all_to_all;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "the host would wait for the GPU to count rows: set it to auto or all_gather";
         }},
};

constexpr std::array kExpertsRules = {
    Rule{"experts.count", "model.family", "0 for vit",
         [](const Config& c, const Surroundings&) {
           return !has_experts(c) || !c.model.is_of_images();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "models of images have no experts: set it to 0";
         }},
    Rule{"adapter.targets", "experts.count run.device",
         "none of mlp.gate, mlp.up and mlp.down on GPUs with experts",
         [](const Config& c, const Surroundings& s) {
           return !has_experts(c) || !on_gpu(c, s) || !c.adapter.is_of_mlp();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "adapters of experts are for CPU ranks: set it to [attention.query, "
                  "attention.key, attention.value, attention.output] or some of them, or "
                  "run.device to cpu";
         }},
    Rule{"model.frozen_format", "experts.count run.device", "compute or bf16 on GPUs with experts",
         [](const Config& c, const Surroundings& s) {
           const auto format = c.model.frozen_format;
           return !has_experts(c) || !on_gpu(c, s) || format == param::StorageFormat::compute ||
                  format == param::StorageFormat::bf16;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "quantized experts are for CPU ranks: set run.device to cpu, or for training "
                  "this to compute or bf16";
         }},
    Rule{"quantization.weights", "experts.count run.device", "none on GPUs with experts",
         [](const Config& c, const Surroundings& s) {
           return !has_experts(c) || !on_gpu(c, s) || !c.quantization;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "quantized experts are for CPU ranks: set it to none, or run.device to cpu";
         }},
    Rule{"experts.active", "experts.count", "at most experts.count",
         [](const Config& c, const Surroundings&) {
           return !has_experts(c) || c.model.experts.active <= c.model.experts.count;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("a token cannot take {} of {} expert{}; set it to {} or less",
                              c.model.experts.active, c.model.experts.count,
                              c.model.experts.count == 1 ? "" : "s", c.model.experts.count);
         }},
    Rule{"experts.first_dense", "experts.count experts.every model.layers",
         "leaves a layer with experts",
         [](const Config& c, const Surroundings&) {
           if (!has_experts(c)) return true;
           for (Dim layer = 0; layer < c.model.layers; ++layer) {
             if (c.model.experts.at(layer)) return true;
           }
           return false;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "none of the {} layers has experts: the first {} have none, and of all layers those "
               "whose number {} divides may; make it or experts.every smaller",
               c.model.layers, c.model.experts.first_dense, c.model.experts.every);
         }},
    Rule{"experts.groups", "experts.count", "divides experts.count",
         [](const Config& c, const Surroundings&) {
           return !has_experts(c) || divides(c.model.experts.groups, c.model.experts.count);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} experts do not make {} equal groups; nearest: {}",
                              c.model.experts.count, c.model.experts.groups,
                              nearest_divisors(c.model.experts.count, c.model.experts.groups));
         }},
    Rule{"experts.group_active", "experts.count experts.groups experts.active",
         "at most experts.groups, and enough for experts.active",
         [](const Config& c, const Surroundings&) {
           const nn::ExpertsConfig& experts = c.model.experts;
           const bool other_rule = experts.active > experts.count;  // which says it better
           return !has_experts(c) || (experts.active_groups <= experts.groups &&
                                      (other_rule || experts.active <= choices_of_token(c)));
         },
         [](const Config& c, const Surroundings&) {
           const nn::ExpertsConfig& experts = c.model.experts;
           if (experts.active_groups > experts.groups) {
             return fmt::format("there are {} groups; set it to {} or less", experts.groups,
                                experts.groups);
           }
           return fmt::format("{} groups have {} experts, and a token takes {}: make it larger",
                              experts.active_groups, choices_of_token(c), experts.active);
         }},
    Rule{"experts.balance_samples", "experts.balance experts.count",
         "1 unless experts.balance is batch",
         [](const Config& c, const Surroundings&) {
           const nn::ExpertsConfig& experts = c.model.experts;
           return !has_experts(c) ||
                  (experts.balance == nn::Balance::batch) == (experts.balance_samples > 1);
         },
         [](const Config& c, const Surroundings&) -> std::string {
           return c.model.experts.balance == nn::Balance::batch
                      ? "a batch is 2 samples or more: set it to a divisor of train.microbatch, or "
                        "experts.balance to sequence"
                      : "samples are balanced together with experts.balance batch: set it to 1, or "
                        "that to batch";
         }},
    Rule{"experts.balance_samples", "experts.count train.microbatch", "divides train.microbatch",
         [](const Config& c, const Surroundings& s) {
           return !has_experts(c) || !s.for_training ||
                  divides(c.model.experts.balance_samples, c.train.microbatch);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} samples are balanced together, and a microbatch has {}; nearest: {}",
               c.model.experts.balance_samples, c.train.microbatch,
               nearest_divisors(c.train.microbatch, c.model.experts.balance_samples));
         }},
    Rule{"model.bias", "experts.count", "false with experts",
         [](const Config& c, const Surroundings&) { return !has_experts(c) || !c.model.bias; },
         [](const Config&, const Surroundings&) -> std::string {
           return "experts have no biases: set it to false, and model.qkv_bias to true if "
                  "attention is to have them";
         }},
    Rule{"precision.gemm", "experts.count", "compute with experts",
         [](const Config& c, const Surroundings&) {
           return !has_experts(c) || c.precision.gemm == train::GemmPrecision::compute;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "experts are not multiplied in 8-bit floats: set it to compute";
         }},
    Rule{"adapter.dropout", "experts.count adapter.targets",
         "0 if adapters are of experts, as mlp.gate, mlp.up and mlp.down are",
         [](const Config& c, const Surroundings&) {
           return !has_experts(c) || c.adapter.dropout == 0 || !c.adapter.is_of_mlp();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "inputs of experts' adapters are not dropped: set it to 0, or adapter.targets to "
                  "[attention.query, attention.key, attention.value, attention.output] or some of "
                  "them";
         }},
    Rule{"memory.mlp_rows", "experts.count", "0 with experts",
         [](const Config& c, const Surroundings&) {
           return !has_experts(c) || c.memory.mlp_rows == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "rows of experts pass at once: set it to 0, or train.microbatch lower";
         }},
};

}  // namespace

std::span<const Rule> experts_layout_rules() { return kLayoutRulesOfExperts; }
std::span<const Rule> experts_rules() { return kExpertsRules; }

}  // namespace hyperslab::deck
