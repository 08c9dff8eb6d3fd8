// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/packing.hpp"

namespace hyperslab::io {

/// A sample of an endless order: sample `index` of the order of source `source`.
struct MixturePlace {
  std::size_t source = 0;
  std::int64_t index = 0;
  friend bool operator==(const MixturePlace&, const MixturePlace&) = default;
};

/// An endless order over sources with fixed shares. Among the first k samples each source has its
/// share of k to less than one sample, for every k. The shares are the weights' if these are whole
/// numbers of some period of up to kMostPeriod samples, else the nearest of kMostPeriod-ths. Within
/// a period every source's next sample has the window in which it may come without leaving that
/// bound, and the one whose window ends first comes first (earliest deadline first, which finds an
/// order if there is one: Tijdeman 1980, "The chairman assignment problem", has the bound). A
/// function of k alone; takes some 400 KB at most, whatever the data's size.
class MixtureOrder {
 public:
  static constexpr std::int64_t kMostPeriod = 65536;

  /// One weight a source, not negative, at least one above 0; their sum may be any. Throws
  /// Error(usage) if a weight above 0 is less than half a kMostPeriod-th of the sum.
  explicit MixtureOrder(const std::vector<double>& weights);

  [[nodiscard]] MixturePlace place(std::int64_t k) const;
  /// Samples of each source among the first k.
  [[nodiscard]] std::vector<std::int64_t> counts(std::int64_t k) const;
  /// Samples after which the sources follow each other again as from the begin on.
  [[nodiscard]] std::int64_t period() const { return static_cast<std::int64_t>(sources_.size()); }
  /// Samples of each source in a period.
  [[nodiscard]] const std::vector<std::int64_t>& parts() const { return parts_; }

 private:
  std::vector<std::int64_t> parts_;
  std::vector<std::uint16_t> sources_;  ///< source of each sample of the period
  std::vector<std::uint32_t> earlier_;  ///< samples of the same source before it
};

/// Weights that hold from a sample on.
struct MixtureStage {
  std::int64_t first = 0;
  std::vector<double> weights;
};

/// Orders one after the other: each begins where the one before had come to in every source. An
/// amount that a source is short of its share at the end of a stage, less than a sample, is not
/// made up for later, so that over S stages it may be up to S samples from the sum of its shares.
class MixtureSchedule {
 public:
  /// Ascending by `first`; the first is 0. All have as many weights.
  explicit MixtureSchedule(const std::vector<MixtureStage>& stages);

  [[nodiscard]] MixturePlace place(std::int64_t k) const;
  [[nodiscard]] std::vector<std::int64_t> counts(std::int64_t k) const;

 private:
  struct Stage {
    std::int64_t first;
    std::vector<std::int64_t> before;  ///< samples of each source in earlier stages
    MixtureOrder order;
  };
  [[nodiscard]] const Stage& stage_of(std::int64_t k) const;
  std::vector<Stage> stages_;
};

/// Packing of the samples of every source.
struct MixedPacking {
  Packing packing = Packing::contiguous;
  PackedSamples::PackedAs packed_as = PackedSamples::PackedAs::documents;
};

/// Samples of several sources by weights. Sample k is the schedule's; the samples of a source
/// come in the order of TokenSamples, or of PackedSamples, with the seed `seed` + its number: with
/// Sampling::blocks each comes once an epoch of the source.
class MixedSamples final : public Samples {
 public:
  /// Mixes the parts of `all` (TokenSource::parts), which must stay. Packs documents of each part
  /// by themselves. Throws Error(usage) if a stage has not one weight a part, Error(data) if
  /// a part holds less than one sample, and as PackedSamples and TokenSource::documents().
  MixedSamples(const TokenSource& all, const std::vector<MixtureStage>& stages, Sampling sampling,
               Dim T, std::uint64_t seed, const TargetRules& rules = {}, MixedPacking packing = {});
  ~MixedSamples() override;
  MixedSamples(const MixedSamples&) = delete;
  MixedSamples& operator=(const MixedSamples&) = delete;
  MixedSamples(MixedSamples&&) = delete;
  MixedSamples& operator=(MixedSamples&&) = delete;

  /// Samples of one epoch of every source together.
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] Dim targets() const override;
  [[nodiscard]] bool may_ignore() const override;
  [[nodiscard]] std::int64_t counted(std::int64_t index) const override;
  [[nodiscard]] bool has_weights() const override;
  [[nodiscard]] double weights(std::int64_t index) const override;
  void read(std::int64_t first, std::int64_t end, const Batch& out) const override;

  [[nodiscard]] const MixtureSchedule& schedule() const { return schedule_; }
  /// Samples of one epoch of each source.
  [[nodiscard]] std::vector<std::int64_t> sizes() const;
  /// Sum over all sources; absent if nothing is packed.
  [[nodiscard]] std::optional<PackingFigures> packing() const;

 private:
  struct Source;
  MixtureSchedule schedule_;
  std::vector<std::unique_ptr<Source>> sources_;
};

}  // namespace hyperslab::io
