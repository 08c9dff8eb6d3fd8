// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using nn::AdapterTarget;
using train::Config;

bool targets(const Config& c, AdapterTarget target) {
  return std::ranges::find(c.adapter.targets, target) != c.adapter.targets.end();
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
    Rule{"adapter.dropout", "parallel.tensor", "0 with parallel.tensor above 1",
         [](const Config& c, const Surroundings&) {
           return c.adapter.dropout == 0 || c.parallel.tensor == 1;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "tensor ranks hold parts of an adapter's input, and its dropout is drawn for "
                  "whole rows: set adapter.dropout to 0, or parallel.tensor to 1";
         }},
};

}  // namespace

std::span<const Rule> adapter_rules() { return kAdapterRules; }

}  // namespace hyperslab::deck
