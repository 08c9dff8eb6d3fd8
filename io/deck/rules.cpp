// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "hyperslab/deck/deck.hpp"
#include "nearest.hpp"
#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using model::AttentionPath;
using model::NormPlace;
using model::Position;
using train::Config;

std::string batch_unit_text(const Config& c) {
  if (c.train.microbatch == 0) return fmt::format("{} data ranks", c.parallel.data);
  return fmt::format("{} (data {} x microbatch {})", c.parallel.data * c.train.microbatch,
                     c.parallel.data, c.train.microbatch);
}
std::string batch_message(const Config& c, const Surroundings&) {
  return fmt::format("{} is no multiple of {}; nearest: {}", c.train.global_batch,
                     batch_unit_text(c), nearest_batch(c));
}

bool synthetic_alone(const std::vector<std::string>& paths) {
  return paths.size() < 2 || std::ranges::find(paths, "synthetic") == paths.end();
}
std::string synthetic_message(const Config&, const Surroundings&) {
  return "synthetic stands alone; leave the other paths out";
}

bool is_synthetic(const std::vector<std::string>& paths) {
  return paths.size() == 1 && paths.front() == "synthetic";
}
std::string id_message(std::int64_t id, const Config& c) {
  return fmt::format("{} is no id of the {} of model.vocabulary; give one below, or -1 for none",
                     id, c.model.vocabulary);
}
std::int64_t largest_of(const std::vector<std::int64_t>& ids) {
  return ids.empty() ? -1 : std::ranges::max(ids);
}

constexpr std::array kModelRules = {
    Rule{"model.heads", "model.width model.head_width",
         "divides model.width, unless model.head_width is given",
         [](const Config& c, const Surroundings&) {
           return c.model.own_head_width > 0 || divides(c.model.heads, c.model.width);
         },
         [](const Config& c, const Surroundings&) {
           const std::string nearest = nearest_heads(c);
           return fmt::format(
               "{} heads do not divide width {}; nearest: {}", c.model.heads, c.model.width,
               nearest == "0" ? nearest_divisors(c.model.width, c.model.heads) : nearest);
         }},
    Rule{"model.width", "model.position", "even with sinusoidal positions",
         [](const Config& c, const Surroundings&) {
           return c.model.position != Position::sinusoidal || c.model.width % 2 == 0;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("sinusoidal positions need an even width, found {}; nearest: {}",
                              c.model.width, nearest_multiples(2, c.model.width));
         }},
    Rule{"model.kv_heads", "model.heads", "divides model.heads",
         [](const Config& c, const Surroundings&) {
           return divides(c.model.kv_heads, c.model.heads);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} key-value heads do not divide {} heads; nearest: {}",
                              c.model.kv_heads, c.model.heads,
                              nearest_divisors(c.model.heads, c.model.kv_heads));
         }},
    Rule{
        "model.norm_place", "model.norm", "pre if there is no norm",
        [](const Config& c, const Surroundings&) {
          return c.model.norm_place == NormPlace::pre || c.model.norm != ops::NormKind::none;
        },
        [](const Config&, const Surroundings&) -> std::string {
          return "other places need a norm, and model.norm is none: set model.norm to layernorm or "
                 "rmsnorm";
        }},
    Rule{"model.attention", "run.device", "cudnn only on a GPU",
         [](const Config& c, const Surroundings& s) {
           return c.model.attention != AttentionPath::cudnn || on_gpu(c, s);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "cudnn needs a GPU, and this run is on the CPU: set model.attention to auto, "
                  "fused or reference";
         }},
    Rule{"model.vocabulary", "data.vocabulary", "at least 257 if data.vocabulary is bytes",
         [](const Config& c, const Surroundings&) {
           return c.data.vocabulary != "bytes" || c.model.vocabulary >= 257;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "data.vocabulary bytes has 257 ids (256 bytes and end of text), "
               "found {}; nearest: 257",
               c.model.vocabulary);
         }},
};

constexpr std::array kRunRules = {
    Rule{"run.name", "", "a file name: no '/', not '.' or '..'",
         [](const Config& c, const Surroundings&) {
           const auto& name = c.run.name;
           return name.find('/') == std::string::npos && name != "." && name != "..";
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("must be a file name, found '{}'; a path goes into run.directory",
                              c.run.name);
         }},
    Rule{"model.attention", "precision.compute model.width model.heads run.device",
         "on a GPU, fused or cudnn only with bf16 or fp16 and head widths in multiples of 8 up to "
         "256",
         [](const Config& c, const Surroundings& s) {
           const bool fused = c.model.attention == AttentionPath::fused ||
                              c.model.attention == AttentionPath::cudnn;
           const bool half =
               c.precision.compute == Precision::bf16 || c.precision.compute == Precision::fp16;
           return !fused || !on_gpu(c, s) ||
                  (half && c.model.head_width() % 8 == 0 && c.model.head_width() <= 256);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "the fused attention of a GPU takes bf16 or fp16 and head widths in multiples of 8 "
               "up to "
               "256, not {} with {}; set it to auto or reference",
               name_of(c.precision.compute), c.model.head_width());
         }},
    Rule{"train.trainable", "model.norm model.bias model.tie_embeddings experts.count",
         "a role of which the model has parameters",
         [](const Config& c, const Surroundings&) {
           const auto has = [&](param::Role role) {
             switch (role) {
               case param::Role::norm: return c.model.norm != ops::NormKind::none;
               case param::Role::bias: return c.model.bias;
               case param::Role::head: return !c.model.tie_embeddings;
               case param::Role::router: return static_cast<bool>(c.model.experts);
               default: return true;
             }
           };
           return c.train.trainable.empty() || std::ranges::any_of(c.train.trainable, has);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "the model has no parameter of these roles, so nothing would be trained; add "
                  "matrix or embedding";
         }},
    Rule{"run.device", "", "cuda only in a build with CUDA",
         [](const Config& c, const Surroundings& s) {
           return c.run.device != train::DeviceChoice::cuda || s.has_cuda_build;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "this program was built without CUDA (-DHYPERSLAB_CUDA=ON): set run.device to "
                  "cpu or auto";
         }},
    Rule{"run.device", "", "cuda only if there is a CUDA device",
         [](const Config& c, const Surroundings& s) {
           return c.run.device != train::DeviceChoice::cuda || !s.has_cuda_build ||
                  s.has_cuda_device;
         },
         [](const Config&, const Surroundings&) -> std::string { return no_device(); }},
    Rule{"data.train", "", "names files or `synthetic` for training",
         [](const Config& c, const Surroundings& s) {
           return !s.for_training || !c.data.train.empty();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "training needs token files: give paths, globs or synthetic";
         }},
    Rule{"data.train", "", "`synthetic` stands alone",
         [](const Config& c, const Surroundings&) { return synthetic_alone(c.data.train); },
         synthetic_message},
    Rule{"data.validation", "", "`synthetic` stands alone",
         [](const Config& c, const Surroundings&) { return synthetic_alone(c.data.validation); },
         synthetic_message},
    Rule{
        "model.bos_token", "model.vocabulary", "below model.vocabulary",
        [](const Config& c, const Surroundings&) { return c.model.bos_token < c.model.vocabulary; },
        [](const Config& c, const Surroundings&) { return id_message(c.model.bos_token, c); }},
    Rule{"model.eos_tokens", "model.vocabulary", "each below model.vocabulary",
         [](const Config& c, const Surroundings&) {
           return largest_of(c.model.eos_tokens) < c.model.vocabulary;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} is no id of the {} of model.vocabulary; give ids below",
                              largest_of(c.model.eos_tokens), c.model.vocabulary);
         }},
    Rule{"data.ignore_token", "model.vocabulary", "below model.vocabulary",
         [](const Config& c, const Surroundings&) {
           return c.data.ignore_token < c.model.vocabulary;
         },
         [](const Config& c, const Surroundings&) { return id_message(c.data.ignore_token, c); }},
    Rule{"data.end_token", "model.vocabulary", "below model.vocabulary",
         [](const Config& c, const Surroundings&) { return c.data.end_token < c.model.vocabulary; },
         [](const Config& c, const Surroundings&) { return id_message(c.data.end_token, c); }},
    Rule{"data.loss_mask", "data.train data.validation",
         "false if data.train or data.validation is synthetic",
         [](const Config& c, const Surroundings&) {
           return !c.data.loss_mask ||
                  (!is_synthetic(c.data.train) && !is_synthetic(c.data.validation));
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "synthetic tokens have no loss mask: set data.loss_mask to false";
         }},
    Rule{"data.validation_fraction", "data.validation", "0 if data.validation is given",
         [](const Config& c, const Surroundings&) {
           return c.data.validation_fraction == 0 || c.data.validation.empty();
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} of the training documents and data.validation cannot both be for validation; "
               "leave one out",
               c.data.validation_fraction);
         }},
    Rule{"data.validation_fraction", "data.train", "0 if data.train is synthetic",
         [](const Config& c, const Surroundings&) {
           return c.data.validation_fraction == 0 || !is_synthetic(c.data.train);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "synthetic tokens have no documents to split: set it to 0 and data.validation to "
                  "synthetic";
         }},
};

constexpr std::array kTrainingRules = {
    Rule{"train.steps", "train.epochs", "for training, exactly one of steps and epochs is given",
         [](const Config& c, const Surroundings& s) {
           return !s.for_training || (c.train.steps > 0) != (c.train.epochs > 0);
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (c.train.steps == 0) return "give train.steps or train.epochs, at least 1";
           return fmt::format("give one of train.steps ({}) and train.epochs ({}), not both",
                              c.train.steps, c.train.epochs);
         }},
    Rule{"train.global_batch", "train.microbatch parallel.data",
         "a multiple of parallel.data x train.microbatch",
         [](const Config& c, const Surroundings&) {
           return divides(batch_unit(c), c.train.global_batch);
         },
         batch_message},
    Rule{"train.validate_every", "data.validation data.validation_fraction",
         "0 if there is neither data.validation nor data.validation_fraction",
         [](const Config& c, const Surroundings&) {
           return c.train.validate_every == 0 || !c.data.validation.empty() ||
                  c.data.validation_fraction > 0;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "validation every {} steps needs data.validation: give paths or synthetic, or "
               "data.validation_fraction, or set train.validate_every to 0",
               c.train.validate_every);
         }},
    Rule{"train.validate_batches", "data.validation", "above 0 if data.validation is synthetic",
         [](const Config& c, const Surroundings&) {
           return c.train.validate_batches > 0 || !is_synthetic(c.data.validation);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "0 means all of the validation tokens, and generated ones have no end: set it to "
                  "20, "
                  "say";
         }},
    Rule{
        "train.tasks", "data.vocabulary", "empty without data.vocabulary",
        [](const Config& c, const Surroundings&) {
          return c.train.tasks.empty() || !c.data.vocabulary.empty() || c.model.is_of_images();
        },
        [](const Config&, const Surroundings&) -> std::string {
          return "tasks are questions in text: set data.vocabulary to the vocabulary that made the "
                 "token files (a folder, or bytes)";
        }},
    Rule{"train.tasks", "model.family", "empty for vit",
         [](const Config& c, const Surroundings&) {
           return c.train.tasks.empty() || !c.model.is_of_images();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "tasks are questions in text, and the model is of images; remove them";
         }},
    Rule{"train.tasks_every", "train.tasks", "0 without train.tasks",
         [](const Config& c, const Surroundings&) {
           return c.train.tasks_every == 0 || !c.train.tasks.empty();
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "scores every {} steps need task files: give train.tasks, or set it "
               "to 0",
               c.train.tasks_every);
         }},
    Rule{"model.unbiased_qkv", "model.bias", "false unless model.bias is true and qkv_bias false",
         [](const Config& c, const Surroundings&) {
           return !c.model.unbiased_qkv || (c.model.bias && !c.model.qkv_bias);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "it leaves out biases that model.bias gives and model.qkv_bias does not ask for; "
                  "set it to false, or model.bias to true and model.qkv_bias to false";
         }},
    Rule{"optimizer.state", "optimizer.name", "fp32 unless adamw",
         [](const Config& c, const Surroundings&) {
           return c.optimizer.state == optim::StateKind::fp32 ||
                  optim::traits_of(c.optimizer.name).has_bf16_state;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "moments in bf16 are of adamw alone; set optimizer.state to fp32, or "
                  "optimizer.name to adamw";
         }},
    Rule{"optimizer.cautious_decay", "optimizer.name", "false with sgd",
         [](const Config& c, const Surroundings&) {
           return !c.optimizer.cautious_decay || optim::traits_of(c.optimizer.name).decouples_decay;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "sgd adds its weight decay to the gradients, where no update is known yet; set "
                  "optimizer.cautious_decay to false, or optimizer.name to adamw";
         }},
    Rule{"optimizer.evaluate_ema", "optimizer.ema_decay",
         "false unless optimizer.ema_decay is above 0",
         [](const Config& c, const Surroundings&) {
           return !c.optimizer.evaluate_ema || c.optimizer.averages();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "no average of the weights is kept: set optimizer.ema_decay to 0.999, say, or "
                  "optimizer.evaluate_ema to false";
         }},
    Rule{"schedule.warmup_steps", "train.steps", "at most train.steps",
         [](const Config& c, const Surroundings&) {
           return c.train.steps == 0 || c.schedule.warmup_steps <= c.train.steps;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} warm-up steps are more than the {} steps of the run; nearest: {}",
                              c.schedule.warmup_steps, c.train.steps, c.train.steps);
         }},
    Rule{"schedule.decay_fraction", "schedule.name schedule.warmup_steps train.steps",
         "with wsd, warm-up and decay fit into train.steps",
         [](const Config& c, const Surroundings&) {
           return c.schedule.name != optim::ScheduleKind::wsd || c.train.steps == 0 ||
                  c.schedule.warmup_steps > c.train.steps ||
                  c.schedule.warmup_steps + decay_steps(c) <= c.train.steps;
         },
         [](const Config& c, const Surroundings&) {
           const auto room = static_cast<double>(c.train.steps - c.schedule.warmup_steps);
           return fmt::format(
               "{} warm-up and {} decay steps are more than the {} steps of the "
               "run; nearest: {:.6g}",
               c.schedule.warmup_steps, decay_steps(c), c.train.steps,
               room / static_cast<double>(c.train.steps));
         }},
    Rule{"checkpoint.keep_every", "checkpoint.every", "a multiple of checkpoint.every",
         [](const Config& c, const Surroundings&) {
           const auto& keep = c.checkpoint;
           return keep.keep_every == 0 || divides(keep.every, keep.keep_every);
         },
         [](const Config& c, const Surroundings&) -> std::string {
           const std::int64_t every = c.checkpoint.every;
           const std::int64_t keep_every = c.checkpoint.keep_every;
           if (every == 0) return "milestones need checkpoints: set checkpoint.every";
           return fmt::format(
               "milestones are checkpoints, and {} is no multiple of "
               "checkpoint.every {}; nearest: {}",
               keep_every, every, nearest_multiples(every, keep_every));
         }},
    Rule{"checkpoint.memory_every", "checkpoint.async", "with checkpoint.async only",
         [](const Config& c, const Surroundings&) {
           return c.checkpoint.memory_every == 0 || c.checkpoint.async;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "checkpoints in memory are written beside training: set checkpoint.async to true";
         }},
};

}  // namespace

std::span<const Rule> rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> made;
    for (const std::span<const Rule> part :
         {context_rules(), experts_layout_rules(), layout_rules(), experts_rules(),
          std::span<const Rule>(kModelRules), std::span<const Rule>(kRunRules),
          std::span<const Rule>(kTrainingRules), adapter_rules(), image_rules(), rope_rules(),
          score_rules(), mup_rules(), precision_rules(), memory_rules(), mixture_rules(),
          document_rules(), loss_rules(), sample_rules()}) {
      made.insert(made.end(), part.begin(), part.end());
    }
    return made;
  }();
  return all;
}

bool keeps_rules(const train::Config& before, const train::Config& after,
                 Surroundings surroundings) {
  surroundings.ranks = 0;
  return std::ranges::all_of(rules(), [&](const Rule& rule) {
    return !rule.holds(before, surroundings) || rule.holds(after, surroundings);
  });
}

std::string broken_rule(const train::Config& config, const Surroundings& surroundings) {
  for (const Rule& rule : rules()) {
    if (rule.holds(config, surroundings)) continue;
    return fmt::format("{}: {}", rule.key, rule.message(config, surroundings));
  }
  return "";
}

}  // namespace hyperslab::deck
