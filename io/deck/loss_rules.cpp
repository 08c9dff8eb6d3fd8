// SPDX-License-Identifier: Apache-2.0
// Rules of keys about losses and the values of tokens that they read.
#include <algorithm>
#include <array>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;
using train::Loss;

bool is_of(const Config& c, Loss loss) { return c.train.loss == loss; }
bool reads_columns(const Config& c) { return c.token_columns().count() > 0; }

constexpr std::array kLossRules = {
    Rule{"train.loss", "model.family", "cross_entropy with family vit",
         [](const Config& c, const Surroundings&) {
           return !c.model.is_of_images() || is_of(c, Loss::cross_entropy);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "the loss of classes has no tokens: leave it out";
         }},
    Rule{"data.token_weights", "model.family", "false with family vit",
         [](const Config& c, const Surroundings&) {
           return !c.model.is_of_images() || !c.data.token_weights;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "images count alike: set data.token_weights to false";
         }},
    Rule{"train.loss", "data.train data.token_weights",
         "cross_entropy without data.token_weights if data.train is synthetic",
         [](const Config& c, const Surroundings&) {
           return !reads_columns(c) ||
                  std::ranges::find(c.data.train, "synthetic") == c.data.train.end();
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "synthetic tokens have no values: name token files that have them, or leave "
                  "train.loss and data.token_weights out";
         }},
    Rule{"train.loss", "data.packing data.documents",
         "preference needs data.packing document or best_fit and data.documents masked",
         [](const Config& c, const Surroundings&) {
           return !is_of(c, Loss::preference) || (c.data.packing != io::Packing::contiguous &&
                                                  c.data.documents == io::Documents::masked);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "both answers of a pair lie in one sample and do not see each other: set "
                  "data.packing to best_fit and data.documents to masked";
         }},
    Rule{"train.loss", "parallel.context", "not preference with parallel.context above 1",
         [](const Config& c, const Surroundings&) {
           return !is_of(c, Loss::preference) || c.parallel.context == 1;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "a pair would lie on several ranks: set parallel.context to 1";
         }},
    Rule{"train.loss", "data.token_weights train.z_loss",
         "not preference with data.token_weights or train.z_loss",
         [](const Config& c, const Surroundings&) {
           return !is_of(c, Loss::preference) || (!c.data.token_weights && c.train.z_loss == 0);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "the loss is of pairs, not of tokens: set data.token_weights to false and "
                  "train.z_loss to 0";
         }},
    Rule{"train.loss", "data.validation_fraction", "not preference with data.validation_fraction",
         [](const Config& c, const Surroundings&) {
           return !is_of(c, Loss::preference) || c.data.validation_fraction == 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "documents are set aside one by one, and pairs would be torn: set "
                  "data.validation_fraction to 0 and name data.validation";
         }},
    Rule{"train.kl_weight", "train.loss", "0 unless train.loss is clipped",
         [](const Config& c, const Surroundings&) {
           return c.train.kl_weight == 0 || is_of(c, Loss::clipped);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "it belongs to a clipped loss: set train.loss to clipped, or leave it out";
         }},
    Rule{"train.teacher_tokens", "train.loss", "1 or more with distillation, else 0",
         [](const Config& c, const Surroundings&) {
           return (c.train.teacher_tokens > 0) == is_of(c, Loss::distillation);
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "distillation reads 1 to 32 of a teacher's tokens, and other losses none: set "
                  "train.teacher_tokens, or train.loss to distillation";
         }},
};

}  // namespace

std::span<const Rule> loss_rules() { return kLossRules; }

}  // namespace hyperslab::deck
