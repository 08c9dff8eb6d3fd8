// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nearest.hpp"
#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using model::Position;
using train::Config;

bool of_images(const Config& c) { return c.model.is_of_images(); }
bool mixes_pairs(const Config& c) {
  return of_images(c) && c.augment.mixes() && c.augment.mix_mode == image::MixMode::pair;
}
bool is_ordered(const std::array<double, 2>& range) { return range[0] <= range[1]; }
std::string order_message(const std::array<double, 2>& range) {
  return fmt::format("the least value, {}, is above the largest, {}; swap them", range[0],
                     range[1]);
}

/// The even microbatches next to the deck's that cut its global batch evenly, if there are any.
std::string nearest_pairs(const Config& c) {
  const std::int64_t samples = c.train.global_batch / std::max(1, c.parallel.data);
  const auto is_even = [](std::int64_t number) { return number % 2 == 0; };
  return is_even(samples) && samples > 0 ? nearest_divisors(samples, c.train.microbatch, is_even)
                                         : nearest_multiples(2, c.train.microbatch);
}

bool trains_head(const Config& c) {
  const auto& roles = c.train.trainable;
  return !c.adapter &&
         (roles.empty() || std::ranges::find(roles, param::Role::head) != roles.end());
}

constexpr std::array kImageRules = {
    Rule{
        "model.image", "model.family", "above 0 with family vit, else 0",
        [](const Config& c, const Surroundings&) {
          return of_images(c) == (c.model.image.size > 0);
        },
        [](const Config& c, const Surroundings&) -> std::string {
          if (of_images(c)) return "give the rows and columns of pixels of an image, as 224";
          return "only a vision transformer reads images: set model.family to vit, or leave it out";
        }},
    Rule{"model.patch", "model.image", "divides model.image",
         [](const Config& c, const Surroundings&) {
           if (!of_images(c)) return c.model.image.patch == 0;
           return c.model.image.size == 0 || divides(c.model.image.patch, c.model.image.size);
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (!of_images(c)) return "only a vision transformer has patches: leave it out";
           if (c.model.image.patch == 0) return "give the rows and columns of a patch, as 16";
           return fmt::format(
               "patches of {0} x {0} pixels do not cut an image of {1} x {1} evenly; nearest: {2}",
               c.model.image.patch, c.model.image.size,
               nearest_divisors(c.model.image.size, c.model.image.patch));
         }},
    Rule{"model.classes", "model.family", "at least 2 with family vit, else 0",
         [](const Config& c, const Surroundings&) {
           return of_images(c) ? c.model.image.classes >= 2 : c.model.image.classes == 0;
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (of_images(c)) return "a class head needs at least 2 classes";
           return "only a vision transformer has classes: leave it out";
         }},
    Rule{"model.channels", "", "1 or 3",
         [](const Config& c, const Surroundings&) { return c.model.image.channels != 2; },
         [](const Config&, const Surroundings&) -> std::string {
           return "images have 3 channels, or 1, their luma";
         }},
    Rule{"model.vocabulary", "model.classes model.family", "with family vit, model.classes",
         [](const Config& c, const Surroundings&) {
           return !of_images(c) || c.model.vocabulary == c.model.image.classes;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "images have no vocabulary: leave it out and give model.classes";
         }},
    Rule{"model.context", "model.image model.patch model.pooling",
         "with family vit, the number of patches, and 1 with pooling token",
         [](const Config& c, const Surroundings&) {
           return !of_images(c) || c.model.context == c.model.image.tokens();
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "an image is {} tokens (patches, and the class token with pooling token): leave it "
               "out",
               c.model.image.tokens());
         }},
    Rule{"model.position", "model.family",
         "with family vit learned, sincos2d or none; sincos2d only there",
         [](const Config& c, const Surroundings&) {
           const Position position = c.model.position;
           if (!of_images(c)) return position != Position::sincos2d;
           return position == Position::learned || position == Position::sincos2d ||
                  position == Position::none;
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (of_images(c)) return "patches have two coordinates: use learned, sincos2d or none";
           return "sincos2d is of patches of images: use learned, sinusoidal, rope or none";
         }},
    Rule{"model.width", "model.position", "a multiple of 4 with sincos2d",
         [](const Config& c, const Surroundings&) {
           return c.model.position != Position::sincos2d || c.model.width % 4 == 0;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "sincos2d has sine and cosine of two coordinates, and {} is no multiple of 4; "
               "nearest: {}",
               c.model.width, nearest_multiples(4, c.model.width));
         }},
    Rule{"model.tie_embeddings", "model.family", "false with family vit",
         [](const Config& c, const Surroundings&) {
           return !of_images(c) || !c.model.tie_embeddings;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "images have no token table that the head could use: set it to false";
         }},
    Rule{
        "model.drop_path", "model.family", "0 unless the family is vit",
        [](const Config& c, const Surroundings&) { return of_images(c) || c.model.drop_path == 0; },
        [](const Config&, const Surroundings&) -> std::string {
          return "stochastic depth is built for vision transformers alone: set it to 0 and use "
                 "model.dropout";
        }},
    Rule{"model.drop_path_rule", "model.drop_path", "linear unless model.drop_path is above 0",
         [](const Config& c, const Surroundings&) {
           return c.model.drop_path > 0 || c.model.drop_path_rule == nn::DropPathRule::linear;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "no sublayer is skipped: give model.drop_path, or leave it out";
         }},
    Rule{"model.init", "model.family", "normal unless the family is vit",
         [](const Config& c, const Surroundings&) {
           return of_images(c) || c.model.init == nn::InitRule::normal;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "xavier is built for vision transformers alone: set it to normal and give "
                  "model.init_std";
         }},
    Rule{"model.scale_residual_init", "model.init", "false with xavier",
         [](const Config& c, const Surroundings&) {
           return c.model.init == nn::InitRule::normal || !c.model.scale_residual_init;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "xavier gives every matrix its own standard deviation: set it to false";
         }},
    Rule{"model.position_std", "model.family model.position model.pooling",
         "0 unless the family is vit and has learned positions or a class token",
         [](const Config& c, const Surroundings&) {
           const bool has_any = c.model.position == Position::learned ||
                                c.model.image.pooling == model::Pooling::token;
           return c.model.position_std == 0 || (of_images(c) && has_any);
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (of_images(c)) return "the model has neither learned positions nor a class token";
           return "positions of text begin with model.init_std: leave it out";
         }},
    Rule{"augment.policy_fill", "augment.policy", "0 without a policy",
         [](const Config& c, const Surroundings&) {
           return c.augment.policy != image::Policy::none || c.augment.policy_fill == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "no operation uncovers pixels: give augment.policy, or leave it out";
         }},
    Rule{"augment.erase_area", "", "ascending",
         [](const Config& c, const Surroundings&) { return is_ordered(c.augment.erase_area); },
         [](const Config& c, const Surroundings&) { return order_message(c.augment.erase_area); }},
    Rule{"augment.erase_ratio", "", "ascending",
         [](const Config& c, const Surroundings&) { return is_ordered(c.augment.erase_ratio); },
         [](const Config& c, const Surroundings&) { return order_message(c.augment.erase_ratio); }},
    Rule{"train.z_loss", "model.family", "0 for vit",
         [](const Config& c, const Surroundings&) { return !of_images(c) || c.train.z_loss == 0; },
         [](const Config&, const Surroundings&) -> std::string {
           return "the loss of classes has no z-loss; leave it out";
         }},
    Rule{"model.label_smoothing", "model.family", "0 unless the family is vit",
         [](const Config& c, const Surroundings&) {
           return of_images(c) || c.model.label_smoothing == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "labels are smoothed for classes of images alone: set it to 0";
         }},
    Rule{"data.vocabulary", "model.family", "null with family vit",
         [](const Config& c, const Surroundings&) {
           return !of_images(c) || c.data.vocabulary.empty();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "images have no vocabulary: leave it out";
         }},
    Rule{"data.validation_fraction", "model.family", "0 with family vit",
         [](const Config& c, const Surroundings&) {
           return !of_images(c) || c.data.validation_fraction == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "images are not split by the program: pack two sets and give data.validation";
         }},
    Rule{"data.loss_mask", "model.family", "false with family vit",
         [](const Config& c, const Surroundings&) { return !of_images(c) || !c.data.loss_mask; },
         [](const Config&, const Surroundings&) -> std::string {
           return "every image counts: set data.loss_mask to false";
         }},
    Rule{"data.ignore_token", "model.family", "-1 with family vit",
         [](const Config& c, const Surroundings&) {
           return !of_images(c) || c.data.ignore_token == -1;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "every class counts: leave it out";
         }},
    Rule{"checkpoint.new_head", "model.family adapter.rank train.trainable",
         "false unless the family is vit and the head is trained",
         [](const Config& c, const Surroundings&) {
           return !c.checkpoint.new_head || (of_images(c) && trains_head(c));
         },
         [](const Config& c, const Surroundings&) -> std::string {
           if (!of_images(c))
             return "only a vision transformer has a head of classes: leave it out";
           return c.adapter
                      ? "adapters alone are trained, and a new head would stay random: set it "
                        "to false, or adapter.rank to 0"
                      : "a new head would stay random: add head to train.trainable";
         }},
    Rule{
        "checkpoint.new_head", "checkpoint.initial", "false without checkpoint.initial",
        [](const Config& c, const Surroundings&) {
          return !c.checkpoint.new_head || !c.checkpoint.initial.empty();
        },
        [](const Config&, const Surroundings&) -> std::string {
          return "without checkpoint.initial all of the model starts from random weights: leave it "
                 "out";
        }},
    Rule{"data.decode", "run.device", "gpu only on a GPU",
         [](const Config& c, const Surroundings& s) {
           return c.data.decode != io::DecodeOn::gpu || on_gpu(c, s);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "gpu needs a GPU, and this run is on the CPU: set data.decode to auto or cpu";
         }},
    Rule{"augment.scale", "", "ascending",
         [](const Config& c, const Surroundings&) { return is_ordered(c.augment.scale); },
         [](const Config& c, const Surroundings&) { return order_message(c.augment.scale); }},
    Rule{"augment.ratio", "", "ascending",
         [](const Config& c, const Surroundings&) { return is_ordered(c.augment.ratio); },
         [](const Config& c, const Surroundings&) { return order_message(c.augment.ratio); }},
    Rule{"augment.repeats",
         "augment.mixup augment.cutmix augment.mix augment.mix_mode model.family",
         "1 if samples are mixed in pairs",
         [](const Config& c, const Surroundings&) {
           return !mixes_pairs(c) || c.augment.repeats == 1;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "samples next to each other are one image, which would be mixed with itself: set "
                  "augment.mix_mode to batch, or repeats to 1";
         }},
    Rule{"train.microbatch",
         "augment.mixup augment.cutmix augment.mix augment.mix_mode model.family",
         "even if samples are mixed in pairs",
         [](const Config& c, const Surroundings&) {
           return !mixes_pairs(c) || c.train.microbatch % 2 == 0;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "mixup and cutmix mix the two samples of a pair, and a microbatch of {} cuts pairs; "
               "nearest: {}",
               c.train.microbatch, nearest_pairs(c));
         }},
};

}  // namespace

std::span<const Rule> image_rules() { return kImageRules; }

}  // namespace hyperslab::deck
