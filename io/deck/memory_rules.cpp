// SPDX-License-Identifier: Apache-2.0
// Rules of deck section `memory`.
#include <array>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

constexpr std::array kMemoryRules = {
    Rule{"memory.recompute", "parallel.schedule", "none with zero_bubble",
         [](const Config& c, const Surroundings&) {
           return c.memory.recompute == nn::Recompute::none ||
                  c.parallel.schedule != mesh::Schedule::zero_bubble;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} computes activations again just before both parts of backward, and zero_bubble "
               "splits them: set memory.recompute to none, or parallel.schedule to 1f1b",
               name_of(c.memory.recompute));
         }},
    Rule{"memory.recompute_layers", "memory.recompute", "0 unless memory.recompute is full",
         [](const Config& c, const Surroundings&) {
           return c.memory.recompute_layers == 0 || c.memory.recompute == nn::Recompute::full;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} computes no whole block again; set memory.recompute to full, or "
               "memory.recompute_layers to 0",
               name_of(c.memory.recompute));
         }},
    Rule{"memory.resident_gib", "memory.optimizer", "0 unless memory.optimizer is host",
         [](const Config& c, const Surroundings&) {
           return c.memory.resident_gib == 0 || c.memory.optimizer == Home::host;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "all state is on the device already; set memory.optimizer to host, or "
                  "memory.resident_gib to 0";
         }},
    Rule{"memory.optimizer", "optimizer.name", "device with muon",
         [](const Config& c, const Surroundings&) {
           return c.memory.optimizer == Home::device ||
                  optim::traits_of(c.optimizer.name).updates_ranges;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} needs whole matrices, and state on the host comes in chunks; set "
               "memory.optimizer to device, or optimizer.name to adamw",
               optim::traits_of(c.optimizer.name).name);
         }},
};

}  // namespace

std::span<const Rule> memory_rules() { return kMemoryRules; }

}  // namespace hyperslab::deck
