// SPDX-License-Identifier: Apache-2.0
// Rules of deck section `memory`.
#include <fmt/format.h>

#include <array>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

/// So that no piece has fewer rows than products in 8-bit floats need, however they are divided.
constexpr std::int64_t kFewestFp8Rows = 256;

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
    Rule{"memory.activations", "memory.recompute", "device unless memory.recompute is full",
         [](const Config& c, const Surroundings&) {
           return c.memory.activations == Home::device || c.memory.recompute == nn::Recompute::full;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "{} keeps more than the inputs of blocks; set memory.recompute to full, or "
               "memory.activations to device",
               name_of(c.memory.recompute));
         }},
    Rule{"memory.host_layers", "memory.activations", "0 unless memory.activations is host",
         [](const Config& c, const Surroundings&) {
           return c.memory.host_layers == 0 || c.memory.activations == Home::host;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "all inputs rest on the device; set memory.activations to host, or "
                  "memory.host_layers to 0";
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
    Rule{
        "memory.mlp_rows", "memory.recompute", "0 unless memory.recompute is full",
        [](const Config& c, const Surroundings&) {
          return c.memory.mlp_rows == 0 || c.memory.recompute == nn::Recompute::full;
        },
        [](const Config& c, const Surroundings&) {
          return fmt::format(
              "a feed-forward network in pieces keeps only its input, and recompute {} keeps more: "
              "set memory.recompute to full, or memory.mlp_rows to 0",
              name_of(c.memory.recompute));
        }},
    Rule{
        "memory.mlp_rows", "precision.gradients", "0 with precision.gradients bf16",
        [](const Config& c, const Surroundings&) {
          return c.memory.mlp_rows == 0 || c.precision.gradients != Precision::bf16;
        },
        [](const Config&, const Surroundings&) -> std::string {
          return "every piece would round the sum of gradients to bf16: set precision.gradients to "
                 "fp32, or memory.mlp_rows to 0";
        }},
    Rule{"memory.mlp_rows", "precision.gemm", "0 or at least 256 with products in 8-bit floats",
         [](const Config& c, const Surroundings&) {
           return c.memory.mlp_rows == 0 || c.memory.mlp_rows >= kFewestFp8Rows ||
                  c.precision.gemm == train::GemmPrecision::compute;
         },
         [](const Config& c, const Surroundings&) {
           return fmt::format(
               "pieces of at most {} rows may be too small for products in 8-bit floats; set it to "
               "{} or more",
               c.memory.mlp_rows, kFewestFp8Rows);
         }},
    Rule{"memory.mlp_rows", "adapter.dropout", "0 with adapter.dropout",
         [](const Config& c, const Surroundings&) {
           return c.memory.mlp_rows == 0 || !c.adapter || c.adapter.dropout == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "the masks of adapters' inputs are those of whole microbatches: set "
                  "adapter.dropout or memory.mlp_rows to 0";
         }},
    Rule{"memory.loss_rows", "model.family", "0 with family vit",
         [](const Config& c, const Surroundings&) {
           return c.memory.loss_rows == 0 || c.model.family != model::Family::vit;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "an image has one row of logits; leave it out";
         }},
};

}  // namespace

std::span<const Rule> memory_rules() { return kMemoryRules; }

}  // namespace hyperslab::deck
