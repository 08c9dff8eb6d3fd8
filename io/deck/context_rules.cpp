// SPDX-License-Identifier: Apache-2.0
// Rules of samples whose tokens lie on several ranks.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nearest.hpp"
#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

/// Key-value heads of a tensor rank; 0: several ranks share one.
std::int64_t key_value_heads(const Config& c) {
  return c.model.kv_heads / std::max(1, c.parallel.tensor);
}

/// The divisors of the tokens of a sample that the key-value heads of a tensor rank allow, too.
std::string nearest_context(const Config& c) {
  return nearest_divisors(c.model.context, c.parallel.context, [&](std::int64_t ranks) {
    return ranks == 1 || (key_value_heads(c) > 0 && divides(ranks, key_value_heads(c)));
  });
}

constexpr std::array kContextRules = {
    Rule{"parallel.context", "model.family", "1 for vit",
         [](const Config& c, const Surroundings&) {
           return c.parallel.context == 1 || !c.model.is_of_images();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "the patches of an image are few and stay on one rank; set it to 1, and "
                  "parallel.data to more ranks";
         }},
    Rule{"parallel.context", "model.context", "divides model.context",
         [](const Config& c, const Surroundings&) {
           return c.model.is_of_images() || divides(c.parallel.context, c.model.context);
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format("{} ranks cannot share {} tokens equally; nearest: {}",
                              c.parallel.context, c.model.context, nearest_context(c));
         }},
    Rule{
        "parallel.context", "model.kv_heads parallel.tensor",
        "divides model.kv_heads / parallel.tensor",
        [](const Config& c, const Surroundings&) {
          const std::int64_t heads = key_value_heads(c);
          return c.parallel.context == 1 || (heads > 0 && divides(c.parallel.context, heads));
        },
        [](const Config& c, const Surroundings&) {
          const std::int64_t heads = key_value_heads(c);
          if (heads == 0) {
            return fmt::format(
                "{} tensor ranks share {} key-value head{}, and none has one of its own that "
                "context ranks could share; nearest: 1",
                c.parallel.tensor, c.model.kv_heads, c.model.kv_heads == 1 ? "" : "s");
          }
          return fmt::format(
              "{} ranks cannot share the {} key-value head{} of a tensor rank equally; nearest: {}",
              c.parallel.context, heads, heads == 1 ? "" : "s", nearest_context(c));
        }},
};

}  // namespace

std::span<const Rule> context_rules() { return kContextRules; }

}  // namespace hyperslab::deck
