// SPDX-License-Identifier: Apache-2.0
// Rules of keys about documents in samples of text.
#include <algorithm>
#include <array>

#include "hyperslab/io/packing.hpp"
#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

using train::Config;

bool masks(const Config& c) { return c.data.documents == io::Documents::masked; }
bool packs(const Config& c) { return c.data.packing != io::Packing::contiguous; }

constexpr std::array kDocumentRules = {
    Rule{"data.documents", "data.end_token", "joined without data.end_token",
         [](const Config& c, const Surroundings&) { return !masks(c) || c.data.end_token >= 0; },
         [](const Config&, const Surroundings&) -> std::string {
           return "set data.end_token to the id that ends a document, or keep documents joined";
         }},
    Rule{"data.documents", "model.family", "joined with family vit",
         [](const Config& c, const Surroundings&) { return !masks(c) || !c.model.is_of_images(); },
         [](const Config&, const Surroundings&) -> std::string {
           return "images have no documents: leave it out";
         }},
    Rule{"data.packing", "model.family data.train",
         "contiguous with family vit, and if data.train is synthetic",
         [](const Config& c, const Surroundings&) {
           const bool is_generated =
               std::ranges::find(c.data.train, "synthetic") != c.data.train.end();
           return !packs(c) || (!is_generated && !c.model.is_of_images());
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "images and synthetic tokens have no documents: leave it out";
         }},
    Rule{"data.packing", "data.predict_starts", "contiguous with data.predict_starts",
         [](const Config& c, const Surroundings&) { return !packs(c) || !c.data.predict_starts; },
         [](const Config&, const Surroundings&) -> std::string {
           return "what stands before a packed document says nothing of its first token: set "
                  "data.predict_starts to false and data.end_token to the id that ends a document";
         }},
    Rule{"data.packing", "data.sampling", "contiguous with data.sampling windows",
         [](const Config& c, const Surroundings&) {
           return !packs(c) || c.data.sampling == io::Sampling::blocks;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "windows begin anywhere in a text: set data.sampling to blocks";
         }},
    Rule{"data.packing", "model.context", "contiguous with a model.context above 1048576",
         [](const Config& c, const Surroundings&) {
           return !packs(c) || c.model.context <= io::kMostPackedTokens;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "lengths of packed documents have 20 bits: use a smaller context";
         }},
    Rule{"data.predict_starts", "data.end_token", "true without data.end_token",
         [](const Config& c, const Surroundings&) {
           return c.data.predict_starts || c.data.end_token >= 0;
         },
         [](const Config&, const Surroundings&) -> std::string {
           return "set data.end_token to the id that ends a document, or leave it out";
         }},
};

}  // namespace

std::span<const Rule> document_rules() { return kDocumentRules; }

}  // namespace hyperslab::deck
