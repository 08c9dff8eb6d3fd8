// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "dataset/document_view.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/mixture.hpp"

namespace hyperslab::io {

/// Tokens of one path or pattern, and their samples.
struct MixedSamples::Source {
  Source(const TokenSource& all, std::size_t number, std::int64_t begin, std::int64_t end)
      : tokens({std::shared_ptr<const void>(), &all}, fmt::format("source {}", number + 1)) {
    if (begin < end) tokens.append(begin, end);
  }
  DocumentView tokens;
  std::unique_ptr<Samples> samples;
};

namespace {

/// First tokens of the documents in [begin, end), counted from `begin`.
std::vector<std::int64_t> documents_in(const std::vector<std::int64_t>& documents,
                                       std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> found;
  for (auto start = std::ranges::lower_bound(documents, begin);
       start != documents.end() && *start < end; ++start) {
    found.push_back(*start - begin);
  }
  return found;
}

}  // namespace

MixedSamples::MixedSamples(const TokenSource& all, const std::vector<MixtureStage>& stages,
                           Sampling sampling, Dim T, std::uint64_t seed, const TargetRules& rules,
                           MixedPacking packing)
    : schedule_(stages) {
  const std::vector<std::int64_t> parts = all.parts();
  for (const MixtureStage& stage : stages) {
    if (stage.weights.size() == parts.size()) continue;
    throw Error(ExitCode::usage,
                fmt::format("data.weights: expected one for each of the {} entries of data.train, "
                            "found {}",
                            parts.size(), stage.weights.size()));
  }
  std::vector<std::int64_t> documents;
  if (packing.packing != Packing::contiguous) documents = all.documents(rules.end_token);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t end = i + 1 < parts.size() ? parts[i + 1] : all.size();
    sources_.push_back(std::make_unique<Source>(all, i, parts[i], end));
    Source& source = *sources_.back();
    if (packing.packing == Packing::contiguous) {
      source.samples =
          std::make_unique<TokenSamples>(source.tokens, sampling, T, seed + i, true, rules);
    } else {
      source.samples =
          std::make_unique<PackedSamples>(source.tokens, documents_in(documents, parts[i], end),
                                          packing.packing, T, seed + i, rules, packing.packed_as);
    }
  }
}

MixedSamples::~MixedSamples() = default;

std::vector<std::int64_t> MixedSamples::sizes() const {
  std::vector<std::int64_t> found;
  found.reserve(sources_.size());
  for (const auto& source : sources_) found.push_back(source->samples->size());
  return found;
}

std::int64_t MixedSamples::size() const {
  const std::vector<std::int64_t> all = sizes();
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

Dim MixedSamples::targets() const { return sources_.front()->samples->targets(); }

bool MixedSamples::may_ignore() const {
  return std::ranges::any_of(sources_,
                             [](const auto& source) { return source->samples->may_ignore(); });
}

std::int64_t MixedSamples::counted(std::int64_t index) const {
  const MixturePlace place = schedule_.place(index);
  return sources_[place.source]->samples->counted(place.index);
}

bool MixedSamples::has_weights() const {
  return std::ranges::any_of(sources_,
                             [](const auto& source) { return source->samples->has_weights(); });
}

double MixedSamples::weights(std::int64_t index) const {
  const MixturePlace place = schedule_.place(index);
  return sources_[place.source]->samples->weights(place.index);
}

std::optional<PackingFigures> MixedSamples::packing() const {
  std::optional<PackingFigures> all;
  for (const auto& source : sources_) {
    const auto* packed = dynamic_cast<const PackedSamples*>(source->samples.get());
    if (packed == nullptr) return std::nullopt;
    if (!all) all.emplace();
    *all += packed->figures();
  }
  return all;
}

void MixedSamples::read(std::int64_t first, std::int64_t end, const Batch& out) const {
  const Dim B = out.tokens.dims<2>("tokens")[0];
  for (Dim b = 0; b < B; ++b) {
    Batch row;
    row.tokens = out.tokens.slice(b, 1);
    row.targets = out.targets.slice(b, 1);
    for (const auto view :
         {&Batch::first_keys, &Batch::token_values, &Batch::teacher_ids, &Batch::pairs}) {
      if (out.*view) row.*view = (out.*view).slice(b, 1);
    }
    const bool counts = first + b < end;
    const MixturePlace place = schedule_.place(counts ? first + b : 0);
    sources_[place.source]->samples->read(place.index, counts ? kNoEnd : place.index, row);
  }
}

}  // namespace hyperslab::io
