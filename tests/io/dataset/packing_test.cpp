// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/packing.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "dataset/best_fit.hpp"
#include "dataset/token_writer.hpp"
#include "hyperslab/io/mixture.hpp"
#include "hyperslab/ops/loss.hpp"
#include "io/dataset/files.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using io::PackedSamples;
using io::Packing;
using Ids = std::vector<std::int32_t>;
using Numbers = std::vector<std::int64_t>;

/// Ids 1, 2, ... of documents with given lengths, each ended by the id 0; perhaps a loss mask.
class Documents final : public io::TokenSource {
 public:
  explicit Documents(const Numbers& lengths, bool mask = false) : mask_(mask) {
    std::mt19937 random(11);
    for (const std::int64_t length : lengths) {
      starts_.push_back(size());
      for (std::int64_t i = 1; i < length; ++i)
        ids_.push_back(static_cast<std::int32_t>(size()) + 1);
      ids_.push_back(0);
    }
    for (std::int64_t i = 0; i < size(); ++i) masks_.push_back(random() % 3 == 0 ? 0 : 1);
  }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(ids_); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    ASSERT_LE(first + std::ssize(out), size());
    std::ranges::copy_n(ids_.begin() + first, std::ssize(out), out.begin());
  }
  [[nodiscard]] bool has_mask() const override { return mask_; }
  void read_mask(std::int64_t first, std::span<std::uint8_t> out) const override {
    std::ranges::copy_n(masks_.begin() + first, std::ssize(out), out.begin());
  }
  [[nodiscard]] Numbers documents(std::int32_t /*end_token*/) const override { return starts_; }
  [[nodiscard]] std::string description() const override { return "documents"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }
  [[nodiscard]] bool is_masked(std::int64_t index) const {
    return mask_ && masks_[static_cast<std::size_t>(index)] == 0;
  }
  [[nodiscard]] std::int32_t id(std::int64_t index) const {
    return ids_[static_cast<std::size_t>(index)];
  }

 private:
  bool mask_;
  Ids ids_;
  Numbers starts_;
  std::vector<std::uint8_t> masks_;
};

Numbers drawn_lengths(std::size_t count, int most, unsigned seed) {
  std::mt19937 random(seed);
  Numbers lengths(count);
  for (auto& length : lengths) {
    const unsigned bound = random() % 4 == 0 ? static_cast<unsigned>(most) : 1 + most / 5U;
    length = 1 + static_cast<std::int64_t>(random() % bound);
  }
  return lengths;
}

/// The definition: every bin is looked at for every item.
std::vector<std::vector<std::uint32_t>> naive_best_fit(const std::vector<std::int32_t>& lengths,
                                                       std::int64_t capacity) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<std::uint32_t>> bins;
  std::vector<std::int64_t> spaces;
  Numbers filled;  // when each bin was filled last
  std::int64_t now = 0;
  for (const std::uint32_t item : order) {
    std::size_t best = bins.size();
    for (std::size_t bin = 0; bin < bins.size(); ++bin) {
      if (spaces[bin] < lengths[item]) continue;
      const bool better = best == bins.size() || spaces[bin] < spaces[best] ||
                          (spaces[bin] == spaces[best] && filled[bin] > filled[best]);
      if (better) best = bin;
    }
    if (best == bins.size()) {
      bins.emplace_back();
      spaces.push_back(capacity);
      filled.push_back(0);
    }
    bins[best].push_back(item);
    spaces[best] -= lengths[item];
    filled[best] = ++now;
  }
  return bins;
}

TEST(BestFit, EqualsItsDefinition) {
  std::mt19937 random(1);
  for (const std::int64_t capacity : {1, 2, 7, 63, 64, 65, 300, 4096, 5000, 270000}) {
    for (const std::size_t items : {0U, 1U, 2U, 50U, 700U}) {
      std::vector<std::int32_t> lengths(items);
      const auto most = static_cast<std::uint64_t>(random() % 2 == 0 ? capacity : 1 + capacity / 3);
      for (auto& length : lengths) length = static_cast<std::int32_t>(1 + random() % most);

      const io::Bins found = io::best_fit(lengths, capacity);
      const auto expected = naive_best_fit(lengths, capacity);

      ASSERT_EQ(found.firsts.size(), expected.size() + 1) << capacity << " " << items;
      for (std::size_t bin = 0; bin < expected.size(); ++bin) {
        const std::vector<std::uint32_t> here(found.items.begin() + found.firsts[bin],
                                              found.items.begin() + found.firsts[bin + 1]);
        ASSERT_EQ(here, expected[bin]) << capacity << " " << bin;
      }
    }
  }
}

TEST(BestFit, RefusesWhatNoBinTakes) {
  EXPECT_THROW((void)io::best_fit(std::vector<std::int32_t>{3, 8}, 7), Error);
  EXPECT_THROW((void)io::best_fit(std::vector<std::int32_t>{0}, 7), Error);
}

TEST(BestFit, HandMadeDocumentsFillTheirSamples) {
  const Documents source({7, 3, 12, 5, 2, 4, 1});  // of 12: a piece of 10 and one of 2
  const PackedSamples samples(source, source.documents(0), Packing::best_fit, 10, 7);

  // 10 | 7 3 | 5 4 1 | 2 2
  EXPECT_EQ(samples.size(), 4);
  const io::PackingFigures& figures = samples.figures();
  EXPECT_EQ(figures.documents, 7);
  EXPECT_EQ(figures.pieces, 8);
  EXPECT_EQ(figures.samples, 4);
  EXPECT_EQ(figures.padding, 6);
  EXPECT_EQ(figures.cut, 1);
  EXPECT_EQ(figures.cut_contiguous, 2);  // that of 12 and the one at 29 to 33: 27..32
  std::map<std::size_t, int> sizes;
  for (std::int64_t g = 0; g < 4; ++g) ++sizes[samples.pieces(g).size()];
  EXPECT_EQ(sizes, (std::map<std::size_t, int>{{1, 1}, {2, 2}, {3, 1}}));
}

/// A batch of text with first keys.
struct TextBatch {
  TextBatch(Dim B, Dim T)
      : tokens(Device::cpu, DType::i32, {B, T}),
        targets(Device::cpu, DType::i32, {B, T}),
        first(Device::cpu, DType::i32, {B, T}) {
    batch.tokens = tokens.view();
    batch.targets = targets.view();
    batch.first_keys = first.view();
  }
  Tensor tokens, targets, first;
  Batch batch;
};

/// Checks one sample against its pieces; counts where each token of the source was an input.
void check_sample(const Documents& source, const PackedSamples& samples, std::int64_t g,
                  const io::TargetRules& rules, Numbers& seen) {
  const Dim T = samples.targets();
  TextBatch text(1, T);
  samples.read(g, io::kNoEnd, text.batch);
  const auto tokens = text.batch.tokens.span<std::int32_t>();
  const auto targets = text.batch.targets.span<std::int32_t>();
  const auto first = text.batch.first_keys.span<std::int32_t>();
  std::size_t t = 0;
  std::int64_t counted = 0;
  for (const PackedSamples::Piece& piece : samples.pieces(g)) {
    const auto begin = static_cast<std::int32_t>(t);
    for (std::int64_t at = piece.begin; at < piece.end; ++at, ++t) {
      ASSERT_LT(t, tokens.size());
      ++seen[static_cast<std::size_t>(at)];
      EXPECT_EQ(tokens[t], source.id(at));
      EXPECT_EQ(first[t], begin);
      const bool is_last = source.id(at) == 0;
      EXPECT_EQ(piece.ends_document && at + 1 == piece.end, is_last);
      const bool counts =
          !is_last && !source.is_masked(at + 1) && source.id(at + 1) != rules.ignore_token;
      EXPECT_EQ(targets[t], counts ? source.id(at + 1) : ops::kIgnoredTarget) << at;
      counted += counts ? 1 : 0;
    }
  }
  for (const auto padding = static_cast<std::int32_t>(t); t < tokens.size(); ++t) {
    EXPECT_EQ(tokens[t], 0);
    EXPECT_EQ(targets[t], ops::kIgnoredTarget);
    EXPECT_EQ(first[t], padding);
  }
  EXPECT_EQ(samples.counted(g), counted);
}

TEST(PackedSamples, EveryTokenIsAnInputOnceAnEpochWithItsOwnTarget) {
  const Numbers lengths = drawn_lengths(300, 90, 2);
  for (const bool mask : {false, true}) {
    const Documents source(lengths, mask);
    for (const Packing packing : {Packing::document, Packing::best_fit}) {
      for (const Dim T : {1, 5, 32, 100}) {
        const io::TargetRules rules = {mask ? 17 : -1, 0, false};
        const PackedSamples samples(source, source.documents(0), packing, T, 42, rules);
        for (const std::int64_t epoch : {0, 1, 5}) {
          Numbers seen(static_cast<std::size_t>(source.size()));
          for (std::int64_t g = 0; g < samples.size(); ++g) {
            check_sample(source, samples, epoch * samples.size() + g, rules, seen);
          }
          EXPECT_EQ(std::ranges::count(seen, 1), source.size());
        }
        EXPECT_EQ(samples.figures().padding, samples.size() * T - source.size());
      }
    }
  }
}

TEST(PackedSamples, OfOneDocumentHoldAPieceEach) {
  const Documents source(drawn_lengths(100, 90, 3));
  const PackedSamples samples(source, source.documents(0), Packing::document, 32, 42);

  EXPECT_EQ(samples.size(), samples.figures().pieces);
  for (std::int64_t g = 0; g < samples.size(); ++g) EXPECT_EQ(samples.pieces(g).size(), 1);
}

TEST(PackedSamples, ComeInAnOrderOfSeedAndNumberAlone) {
  const Documents source(drawn_lengths(400, 40, 4));
  const auto order = [&](std::uint64_t seed, std::int64_t first) {
    const PackedSamples samples(source, source.documents(0), Packing::best_fit, 50, seed);
    std::vector<std::vector<PackedSamples::Piece>> found;
    for (std::int64_t g = first; g < first + 150; ++g) found.push_back(samples.pieces(g));
    return found;
  };

  EXPECT_EQ(order(42, 0), order(42, 0));
  EXPECT_NE(order(42, 0), order(43, 0));
  const PackedSamples samples(source, source.documents(0), Packing::best_fit, 50, 42);
  EXPECT_NE(order(42, 0), order(42, samples.size()));
}

TEST(PackedSamples, BeyondTheEndAreReplacedByWhatDoesNotCount) {
  const Documents source({4, 3});
  const PackedSamples samples(source, source.documents(0), Packing::best_fit, 8, 42);
  TextBatch text(2, 8);

  samples.read(0, 1, text.batch);

  const auto targets = text.batch.targets.span<std::int32_t>();
  EXPECT_EQ(std::ranges::count(targets.last(8), ops::kIgnoredTarget), 8);
  EXPECT_EQ(std::ranges::count(targets.first(8), ops::kIgnoredTarget), 3);  // two ends, padding
}

TEST(PackedSamples, OfASplitHoldItsDocuments) {
  const auto all = std::make_shared<Documents>(drawn_lengths(300, 30, 5));
  const io::DataTokens parts = io::split_documents(all, 0.3, 0);
  std::size_t documents = 0;
  for (const io::TokenSource* part : {parts.train.get(), parts.validation.get()}) {
    const Numbers starts = part->documents(0);
    documents += starts.size();
    Ids ids(static_cast<std::size_t>(part->size()));
    part->read(0, ids);
    Numbers expected = {0};
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      if (ids[i] == 0) expected.push_back(static_cast<std::int64_t>(i) + 1);
    }
    EXPECT_EQ(starts, expected);
  }
  EXPECT_EQ(documents, 300);
}

class PackedFiles : public FilesTest {};

TEST_F(PackedFiles, NoSampleHoldsTokensOfTwoFilesThatAreNotJoined) {
  const auto write_ids = [&](const std::string& name, std::int32_t id) {
    Ids ids;
    for (int d = 0; d < 30; ++d) {
      ids.insert(ids.end(), static_cast<std::size_t>(1 + d % 5), id);
      ids.push_back(0);
    }
    io::write_token_file(path(name), ids, 257);
    return path(name);
  };
  const std::vector<std::string> files = {write_ids("a.bin", 1), write_ids("b.bin", 2)};
  const auto crossing = [&](bool join_files) {
    const auto all = io::open_tokens(files, io::RawIds::uint16, 257, 1, false, join_files);
    const PackedSamples samples(*all, all->documents(0), Packing::best_fit, 16, 42);
    std::int64_t found = 0;
    std::int64_t tokens = 0;
    for (std::int64_t g = 0; g < samples.size(); ++g) {
      const auto pieces = samples.pieces(g);
      const std::int64_t border = all->size() / 2;
      const auto in_first = [&](const auto& piece) { return piece.begin < border; };
      const auto count = std::ranges::count_if(pieces, in_first);
      found += count > 0 && count < std::ssize(pieces) ? 1 : 0;
      for (const auto& piece : pieces) tokens += piece.end - piece.begin;
    }
    EXPECT_EQ(tokens, all->size());
    return found;
  };

  EXPECT_EQ(crossing(false), 0);
  EXPECT_GT(crossing(true), 0);
}

TEST_F(PackedFiles, MixedSourcesArePackedEachAlone) {
  const auto write_ids = [&](const std::string& name, std::int32_t id) {
    Ids ids;
    for (int d = 0; d < 60; ++d) {
      ids.insert(ids.end(), static_cast<std::size_t>(1 + d % 13), id);
      ids.push_back(0);
    }
    io::write_token_file(path(name), ids, 257);
    return path(name);
  };
  const auto all =
      io::open_tokens({write_ids("a.bin", 1), write_ids("b.bin", 2)}, io::RawIds::uint16, 257, 1);
  const io::TargetRules rules = {-1, 0, false};
  const io::MixedSamples mixed(*all, {{0, {1, 1}}}, io::Sampling::blocks, 16, 42, rules,
                               io::MixedPacking{Packing::best_fit});
  TextBatch text(2, 16);

  mixed.read(6, io::kNoEnd, text.batch);

  ASSERT_TRUE(mixed.packing().has_value());
  EXPECT_EQ(mixed.packing()->documents, 120);
  EXPECT_EQ(mixed.size(), mixed.packing()->samples);
  std::set<std::int32_t> found;
  for (Dim b = 0; b < 2; ++b) {
    const auto row = text.batch.tokens.slice(b, 1).span<std::int32_t>();
    const auto targets = text.batch.targets.slice(b, 1).span<std::int32_t>();
    const std::set<std::int32_t> ids(row.begin(), row.end());
    EXPECT_EQ(ids.size(), 2);  // ends, and one source
    found.insert(*ids.rbegin());
    EXPECT_EQ(mixed.counted(6 + b),
              std::ssize(targets) - std::ranges::count(targets, ops::kIgnoredTarget));
  }
  EXPECT_EQ(found, (std::set<std::int32_t>{1, 2}));
}

}  // namespace
}  // namespace hyperslab::test
