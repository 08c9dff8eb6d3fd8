// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "nearest.hpp"
#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using mesh::Schedule;
using train::Config;

std::string ranks_message(const Config& c, const Surroundings& s) {
  const auto& p = c.parallel;
  const std::int64_t others = std::int64_t{p.tensor} * p.pipeline * p.context;
  const auto needed = required_ranks(c);
  const auto found = s.is_plan
                         ? fmt::format("--ranks is {}; set it to {}", s.ranks, needed)
                         : fmt::format("{} {} started; start {} (mpirun -np {} hyperslab ...)",
                                       s.ranks, s.ranks == 1 ? "was" : "were", needed, needed);
  const bool has_context = p.context > 1;
  auto text = fmt::format("needs {} rank{} ({} x {} x {}{}, data x tensor x pipeline{}), {}",
                          needed, needed == 1 ? "" : "s", p.data, p.tensor, p.pipeline,
                          has_context ? fmt::format(" x {}", p.context) : "",
                          has_context ? " x context" : "", found);
  if (divides(others, s.ranks))
    text += fmt::format(" or set parallel.data to {}", s.ranks / others);
  return text;
}

/// Every rank has whole key-value heads, or several ranks share each.
bool shares_out(std::int64_t kv_heads, std::int64_t tensor) {
  return divides(tensor, kv_heads) || divides(kv_heads, tensor);
}

/// Rows of the residual stream of one microbatch.
std::int64_t rows(const Config& c) {
  const std::int64_t samples = c.train.microbatch > 0
                                   ? c.train.microbatch
                                   : c.train.global_batch / std::max(1, c.parallel.data);
  return samples * (c.model.context / std::max(1, c.parallel.context));
}

/// True if so many tensor ranks share all that they divide in this model; they divide its heads.
bool share_the_rest(const Config& c, std::int64_t tensor) {
  const auto& model = c.model;
  const bool share_keys =
      !divides(model.kv_heads, model.heads) || shares_out(model.kv_heads, tensor);
  return share_keys && divides(tensor, model.ffn_width) &&
         (!c.parallel.sequence || divides(tensor, rows(c))) &&
         (tensor == 1 || model.qk_norm != model::QkNorm::width);
}

std::string nearest_tensor(const Config& c) {
  return nearest_divisors(c.model.heads, c.parallel.tensor,
                          [&](std::int64_t tensor) { return share_the_rest(c, tensor); });
}

std::int64_t stages(const Config& c) {
  return std::int64_t{c.parallel.pipeline} * c.parallel.virtual_stages;
}

bool fits_stages(const Config& c) {
  const auto& layers = c.parallel.stage_layers;
  const bool inner_are_filled = std::all_of(layers.begin(), layers.end(), [&](const auto& n) {
    return n > 0 || &n == &layers.front() || &n == &layers.back();
  });
  return std::ssize(layers) == stages(c) && inner_are_filled &&
         std::accumulate(layers.begin(), layers.end(), std::int64_t{0}) == c.model.layers;
}

constexpr std::array kLayoutRules = {
    Rule{"parallel.data", "parallel.tensor parallel.pipeline parallel.context",
         "data x tensor x pipeline x context is the number of ranks",
         [](const Config& c, const Surroundings& s) {
           return s.ranks == 0 || required_ranks(c) == s.ranks;
         },
         ranks_message},
    Rule{"parallel.tensor", "model.heads", "divides model.heads",
         [](const Config& c, const Surroundings&) {
           return divides(c.parallel.tensor, c.model.heads);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} ranks cannot share {} heads; nearest: {}", c.parallel.tensor,
                              c.model.heads, nearest_tensor(c));
         }},
    Rule{"parallel.tensor", "model.kv_heads", "divides model.kv_heads, or is a multiple of it",
         [](const Config& c, const Surroundings&) {
           return !divides(c.model.kv_heads, c.model.heads) ||
                  shares_out(c.model.kv_heads, c.parallel.tensor);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} ranks cannot share {} key-value heads; nearest: {}",
                              c.parallel.tensor, c.model.kv_heads, nearest_tensor(c));
         }},
    Rule{"parallel.tensor", "model.ffn_width", "divides model.ffn_width",
         [](const Config& c, const Surroundings&) {
           return divides(c.parallel.tensor, c.model.ffn_width);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} ranks cannot share a feed-forward width of {}; nearest: {}",
                              c.parallel.tensor, c.model.ffn_width, nearest_tensor(c));
         }},
    Rule{"parallel.sequence", "parallel.tensor parallel.context train.microbatch model.context",
         "false unless parallel.tensor divides train.microbatch x model.context / parallel.context",
         [](const Config& c, const Surroundings&) {
           return !c.parallel.sequence || divides(c.parallel.tensor, rows(c));
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} ranks cannot share the {} rows (samples x tokens) of a microbatch; nearest "
               "tensor: {}",
               c.parallel.tensor, rows(c), nearest_tensor(c));
         }},
    Rule{"parallel.pipeline", "parallel.virtual_stages model.layers",
         "pipeline x virtual_stages is at most model.layers + 2, the blocks with embedding and "
         "head",
         [](const Config& c, const Surroundings&) { return stages(c) <= c.model.layers + 2; },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} stages ({} x {} virtual) are more than the {} blocks, embedding and head; "
               "nearest: {}",
               stages(c), c.parallel.pipeline, c.parallel.virtual_stages, c.model.layers,
               std::max<std::int64_t>(1, (c.model.layers + 2) / c.parallel.virtual_stages));
         }},
    Rule{"parallel.stage_layers", "parallel.pipeline parallel.virtual_stages model.layers",
         "empty, or the blocks of every stage: pipeline x virtual_stages numbers whose sum is "
         "model.layers, 0 only at the ends",
         [](const Config& c, const Surroundings&) {
           return c.parallel.stage_layers.empty() || fits_stages(c);
         },
         [](const Config& c, const Surroundings&) {
           const auto& layers = c.parallel.stage_layers;
           return fmt::format(
               "expected {} numbers that add up to {}, 0 only at the ends; found {} that add up to "
               "{}; leave it out to cut by cost",
               stages(c), c.model.layers, layers.size(),
               std::accumulate(layers.begin(), layers.end(), std::int64_t{0}));
         }},
    Rule{"parallel.virtual_stages", "parallel.schedule parallel.pipeline",
         "1 unless parallel.schedule is interleaved and parallel.pipeline above 1",
         [](const Config& c, const Surroundings&) {
           return c.parallel.virtual_stages == 1 ||
                  (c.parallel.schedule == Schedule::interleaved && c.parallel.pipeline > 1);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} virtual stages need schedule interleaved and a pipeline, found {} with pipeline "
               "{}; set it to 1",
               c.parallel.virtual_stages, name_of(c.parallel.schedule), c.parallel.pipeline);
         }},
    Rule{"parallel.schedule", "parallel.pipeline train.global_batch train.microbatch parallel.data",
         "interleaved only if the microbatches of a step are a multiple of parallel.pipeline",
         [](const Config& c, const Surroundings&) {
           return c.parallel.virtual_stages == 1 || c.train.microbatch == 0 ||
                  !divides(std::int64_t{c.parallel.data} * c.train.microbatch,
                           c.train.global_batch) ||
                  divides(c.parallel.pipeline, c.microbatches());
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "interleaved sends microbatches in rounds of {}, and a step has {}; nearest "
               "train.global_batch: {}",
               c.parallel.pipeline, c.microbatches(), nearest_batch(c));
         }},
    Rule{"parallel.shard", "parallel.data parallel.context",
         "0 or a divisor of parallel.data from 2, or from 1 with parallel.context above 1",
         [](const Config& c, const Surroundings&) {
           const auto& p = c.parallel;
           return p.shard == 0 || (p.shards() >= 2 && p.data % p.shard == 0);
         },
         [](const Config& c, const Surroundings&) {
           const auto& p = c.parallel;
           return fmt::format("{} data rank{} cannot share state in groups of {}; nearest: {}",
                              p.data, p.data == 1 ? "" : "s", p.shard,
                              p.data == 1 || p.shard < 2
                                  ? "0"
                                  : nearest_divisors(p.data, p.shard, [](std::int64_t shard) {
                                      return shard >= 2;
                                    }));
         }},
    Rule{"parallel.expert", "parallel.data parallel.shard",
         "divides parallel.data, and parallel.shard if that is not 0",
         [](const Config& c, const Surroundings&) {
           return divides(c.parallel.expert, c.parallel.data) &&
                  divides(c.parallel.expert, c.parallel.data_shards());
         },
         [](const Config& c, const Surroundings&) {
           const auto& p = c.parallel;
           return fmt::format("{} of {} data ranks{} cannot hold different experts; nearest: {}",
                              p.expert, p.data,
                              p.shard == 0 ? "" : fmt::format(" that share state by {}", p.shard),
                              nearest_divisors(std::gcd(p.data, p.data_shards()), p.expert));
         }},
    Rule{"parallel.shard", "parallel.zero", "0 unless parallel.zero is 1 to 3",
         [](const Config& c, const Surroundings&) {
           return c.parallel.shard == 0 || c.parallel.zero > 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "with parallel.zero 0 every rank holds all of the state; set parallel.zero to 1 "
                  "to 3, or parallel.shard to 0";
         }},
    Rule{"parallel.zero", "parallel.schedule", "at most 1 unless parallel.schedule is 1f1b",
         [](const Config& c, const Surroundings&) {
           return !c.parallel.shards_gradients() ||
                  c.parallel.schedule == Schedule::one_forward_one_backward;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "zero {} sums gradients in every microbatch, and with {} those of several are in "
               "progress: set parallel.schedule to 1f1b; nearest: 1",
               c.parallel.zero, name_of(c.parallel.schedule));
         }},
    Rule{"run.compare_replicas_every", "parallel.zero parallel.shard",
         "0 with parallel.zero 3, unless parallel.shard keeps copies",
         [](const Config& c, const Surroundings&) {
           const auto& p = c.parallel;
           return c.run.compare_replicas_every == 0 || p.zero < 3 || p.pipeline > 1 ||
                  p.shards() == 1 || p.data_shards() < p.data;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "with zero 3 each parameter is on one data rank alone, and there is nothing to "
                  "compare it with; set it to 0, or parallel.zero to 2";
         }},
    Rule{"train.log_norms",
         "parallel.tensor parallel.pipeline parallel.context parallel.expert parallel.zero "
         "memory.recompute",
         "0 unless every rank holds the whole model and its activations: tensor 1, pipeline 1, "
         "context 1, expert 1, zero 0, recompute not full",
         [](const Config& c, const Surroundings&) {
           const auto& p = c.parallel;
           return c.train.log_norms == 0 ||
                  (p.tensor == 1 && p.pipeline == 1 && p.context == 1 && p.expert == 1 &&
                   p.zero == 0 && c.memory.recompute != nn::Recompute::full);
         },
         [](const Config& c, const Surroundings&) {
           const auto& p = c.parallel;
           std::vector<std::string> found;
           if (p.tensor > 1) found.push_back(fmt::format("parallel.tensor {}", p.tensor));
           if (p.pipeline > 1) found.push_back(fmt::format("parallel.pipeline {}", p.pipeline));
           if (p.context > 1) found.push_back(fmt::format("parallel.context {}", p.context));
           if (p.expert > 1) found.push_back(fmt::format("parallel.expert {}", p.expert));
           if (p.zero > 0) found.push_back(fmt::format("parallel.zero {}", p.zero));
           if (c.memory.recompute == nn::Recompute::full) {
             found.emplace_back("memory.recompute full");
           }
           return fmt::format(
               "norms are logged only if every rank holds the whole model and its activations, not "
               "with {}; set it to 0",
               fmt::join(found, ", "));
         }},
};

}  // namespace

std::string nearest_batch(const Config& c) {
  const std::int64_t rounds = c.parallel.virtual_stages > 1 ? c.parallel.pipeline : 1;
  return nearest_multiples(batch_unit(c) * rounds, c.train.global_batch);
}

std::span<const Rule> layout_rules() { return kLayoutRules; }

}  // namespace hyperslab::deck
