// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <thread>

#include "dataset/token_writer.hpp"
#include "hyperslab/ops/loss.hpp"
#include "io/dataset/files.hpp"
#include "io/dataset/hdf5_sets.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using io::Sampling;
using io::TokenSamples;
using Ids = std::vector<std::int32_t>;
using Numbers = std::vector<std::int64_t>;

class IgnoredTargets : public FilesTest {
 protected:
  static std::unique_ptr<io::TokenSource> open(const std::vector<std::string>& paths,
                                               bool loss_mask = true) {
    return io::open_tokens(paths, io::RawIds::uint16, 257, 1, loss_mask);
  }
  void refuse(const std::string& path, std::initializer_list<std::string> parts) {
    expect_error(ExitCode::data, parts, [&] { open({path}); });
  }
  static std::vector<std::uint8_t> mask_of(const io::TokenSource& source) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(source.size()));
    source.read_mask(0, mask);
    return mask;
  }
};

/// Ids 0..4 with a loss mask in tokens that need no file.
class Masked final : public io::TokenSource {
 public:
  Masked(std::int64_t size, bool mask, unsigned seed) : mask_(mask) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < size; ++i) {
      ids_.push_back(static_cast<std::int32_t>(random() % 5));
      masks_.push_back(random() % 3 == 0 ? 0 : 1);
    }
  }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(ids_); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    std::ranges::copy_n(ids_.begin() + first, std::ssize(out), out.begin());
  }
  [[nodiscard]] bool has_mask() const override { return mask_; }
  void read_mask(std::int64_t first, std::span<std::uint8_t> out) const override {
    std::ranges::copy_n(masks_.begin() + first, std::ssize(out), out.begin());
  }
  [[nodiscard]] std::string description() const override { return "masked"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }
  [[nodiscard]] bool counts(std::int64_t index, std::int32_t ignore_token) const {
    const auto at = static_cast<std::size_t>(index);
    return ids_[at] != ignore_token && (!mask_ || masks_[at] != 0);
  }

 private:
  bool mask_;
  Ids ids_;
  std::vector<std::uint8_t> masks_;
};

TEST_F(IgnoredTargets, MasksAreReadInEveryLayoutAndAcrossFiles) {
  const Numbers ids = {5, 6, 7, 8};
  const Numbers mask = {1, 0, 0, 3};
  const auto write = [&](const std::string& name, hid_t ids_type, hid_t mask_type) {
    return write_hdf5(path(name), {{"tokens", ids_type, ids}, {"loss_mask", mask_type, mask}});
  };
  const hid_t boolean = H5Tenum_create(H5T_STD_I8LE);  // as h5py writes bool
  const std::int8_t no = 0;
  const std::int8_t yes = 1;
  H5Tenum_insert(boolean, "FALSE", &no), H5Tenum_insert(boolean, "TRUE", &yes);

  const auto all = open(
      {write("a.h5", H5T_STD_U16LE, H5T_STD_U8LE), write("b.h5", H5T_STD_U16BE, H5T_STD_U8LE),
       write("c.h5", H5T_STD_I32LE, H5T_STD_I8LE), write("d.h5", H5T_STD_I64BE, H5T_STD_U8LE)});

  EXPECT_TRUE(all->has_mask());
  EXPECT_EQ(read_all(*all), (Ids{5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8}));
  for (const std::uint8_t one : {0, 4, 8, 12}) {
    const auto masks = mask_of(*all);
    EXPECT_EQ(std::vector<std::uint8_t>(masks.begin() + one, masks.begin() + one + 4),
              (std::vector<std::uint8_t>{1, 0, 0, 3}));
  }
  EXPECT_FALSE(open({path("a.h5")}, false)->has_mask());
  const hid_t file = H5Fopen(write_hdf5(path("e.h5"), {{"tokens", H5T_STD_U8LE, ids}}).c_str(),
                             H5F_ACC_RDWR, H5P_DEFAULT);
  const hsize_t extent = 4;
  const hid_t space = H5Screate_simple(1, &extent, nullptr);
  const hid_t set =
      H5Dcreate2(file, "loss_mask", boolean, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const std::array<std::int8_t, 4> values = {0, 1, 1, 0};
  H5Dwrite(set, boolean, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  H5Dclose(set), H5Sclose(space), H5Tclose(boolean), H5Fclose(file);
  EXPECT_EQ(mask_of(*open({path("e.h5")})), (std::vector<std::uint8_t>{0, 1, 1, 0}));
}

TEST_F(IgnoredTargets, MasksThatAreMissingOrWrongAreRefused) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const Hdf5Set tokens = {"tokens", H5T_STD_U16LE, {1, 2, 3}};
  io::write_token_file(path("a.bin"), Ids(10, 1), 257);
  io::write_token_file(path("a.npy"), Ids(10, 1), 257);

  refuse(path("a.bin"), {path("a.bin"), "loss_mask", "llm.c uint16", "data.loss_mask"});
  refuse(path("a.npy"), {"loss_mask", "npy"});
  refuse(write_hdf5(path("none.h5"), {tokens}), {"loss_mask", "none", "HDF5"});
  refuse(write_hdf5(path("short.h5"), {tokens, {"loss_mask", H5T_STD_U8LE, {1, 1}}}),
         {"loss_mask of 3 bytes", "found 2"});
  refuse(write_hdf5(path("wide.h5"), {tokens, {"loss_mask", H5T_STD_U16LE, {1, 1, 1}}}),
         {"uint8", "2 bytes"});
  refuse("synthetic", {"synthetic", "data.loss_mask"});
}

TEST(CountedTokens, TargetsAreTheNextTokensExceptThoseThatDoNotCount) {
  constexpr Dim T = 37;
  for (const bool mask : {false, true}) {
    for (const std::int32_t ignore_token : {-1, 3}) {
      const Masked source(5000, mask, 7);
      const TokenSamples samples(source, Sampling::windows, T, 42, true, {ignore_token});
      EXPECT_EQ(samples.may_ignore(), mask || ignore_token >= 0);
      for (std::int64_t g = 0; g < 50; ++g) {
        Ids tokens(T);
        Ids targets(T);
        samples.read(g, tokens, targets);

        Ids expected(T);
        Ids inputs(T);
        source.read(samples.start(g), inputs);
        source.read(samples.start(g) + 1, expected);
        std::int64_t counted = 0;
        for (Dim t = 0; t < T; ++t) {
          const bool counts = source.counts(samples.start(g) + 1 + t, ignore_token);
          counted += counts ? 1 : 0;
          if (!counts) expected[static_cast<std::size_t>(t)] = ops::kIgnoredTarget;
        }
        EXPECT_EQ(tokens, inputs);
        EXPECT_EQ(targets, expected);
        EXPECT_EQ(samples.counted(g), counted);
      }
    }
  }
}

TEST(CountedTokens, StartsOfDocumentsNeedNotCount) {
  constexpr Dim T = 37;
  const Masked source(5000, false, 7);
  for (const bool predicts_starts : {true, false}) {
    const TokenSamples samples(source, Sampling::windows, T, 42, true, {-1, 3, predicts_starts});
    EXPECT_EQ(samples.may_ignore(), !predicts_starts);
    for (std::int64_t g = 0; g < 50; ++g) {
      Ids tokens(T);
      Ids targets(T);
      samples.read(g, tokens, targets);

      std::int64_t ignored = 0;
      for (std::size_t t = 0; t < T; ++t) {
        const bool starts = !predicts_starts && tokens[t] == 3;
        EXPECT_EQ(targets[t] == ops::kIgnoredTarget, starts);
        ignored += starts ? 1 : 0;
      }
      EXPECT_EQ(samples.counted(g), T - ignored);
    }
  }
}

TEST(Documents, BeginAfterEachEndTokenOfTheirSample) {
  constexpr Dim T = 40;
  const Masked source(3000, false, 9);
  for (const std::int32_t end_token : {3, -1}) {
    const TokenSamples samples(source, Sampling::blocks, T, 42, true, {-1, end_token});
    Tensor tokens(Device::cpu, DType::i32, {2, T});
    Tensor targets(Device::cpu, DType::i32, {2, T});
    Tensor first(Device::cpu, DType::i32, {2, T});
    Batch batch;
    batch.tokens = tokens.view();
    batch.targets = targets.view();
    batch.first_keys = first.view();

    samples.read(4, 5, batch);  // and a row of filling

    const auto* ids = tokens.view().data<std::int32_t>();
    const auto* found = first.view().data<std::int32_t>();
    std::int32_t begin = 0;
    for (std::int32_t t = 0; t < T; ++t) {
      EXPECT_EQ(found[t], begin) << t;
      EXPECT_EQ(found[T + t], 0);
      if (ids[t] == end_token) begin = t + 1;
    }
    EXPECT_EQ(begin > 0, end_token == 3);
  }
}

TEST(CountedTokens, OfALongSampleEqualsThatOfItsTargets) {
  const Masked source(20000, true, 3);
  const TokenSamples samples(source, Sampling::blocks, 5000, 42, true, {2, 1, false});
  Ids tokens(5000);
  Ids targets(5000);

  samples.read(1, tokens, targets);

  EXPECT_EQ(samples.counted(1), 5000 - std::ranges::count(targets, ops::kIgnoredTarget));
}

TEST(CountedTokens, OfAGlobalBatchEqualsTheSumOverAllRanksAndMicrobatches) {
  constexpr std::int64_t G = 24;
  constexpr Dim T = 11;
  std::mt19937 random(5);
  for (const bool mask : {false, true}) {
    const Masked source(3000, mask, random());
    const TokenSamples samples(source, Sampling::blocks, T, random(), true, {mask ? -1 : 4});
    io::Loader any(samples, G, 2, 3);
    for (const std::int64_t step : {1, 2, 11, 12, 13, 40, 1000, 12}) {  // across epochs, and back
      Tensor ids(Device::cpu, DType::i32, {2, T});
      Tensor targets(Device::cpu, DType::i32, {2, T});
      Tensor position(Device::cpu, DType::i64, {2});
      std::int64_t counted = 0;
      for (int rank = 0; rank < 3; ++rank) {
        io::Loader loader(samples, G, rank, 3);
        for (int m = 0; m < 4; ++m) {
          loader.load(step, m, {ids.view(), targets.view(), View(), position.view()});
          const auto row = targets.view().span<std::int32_t>();
          counted += std::ssize(row) - std::ranges::count(row, ops::kIgnoredTarget);
        }
      }
      EXPECT_EQ(any.counted_tokens(step), counted) << step;
      EXPECT_LT(counted, G * T);
    }
  }
}

TEST(CountedTokens, ReadsNothingIfAllTargetsCount) {
  const Counting source(50);  // whose read() fails beyond its end
  const TokenSamples samples(source, Sampling::blocks, 5, 42);
  io::Loader loader(samples, 1000000, 0, 1);

  EXPECT_EQ(loader.counted_tokens(1), 5000000);
}

TEST(CountedTokens, OfOneBatchIsThatOfStepOneInEveryStep) {
  const Masked source(3000, true, 1);
  const TokenSamples samples(source, Sampling::blocks, 10, 42);
  io::Loader one(samples, 8, 0, 1, true);

  EXPECT_EQ(one.counted_tokens(77), io::Loader(samples, 8, 0, 1).counted_tokens(1));
}

TEST(CountedTokens, IsRightFromSeveralThreadsAtOnce) {
  const Masked source(3000, true, 1);
  const TokenSamples samples(source, Sampling::blocks, 10, 42);
  io::Loader shared(samples, 8, 0, 1);
  io::Loader alone(samples, 8, 0, 1);
  Numbers found(400);

  std::thread other([&] {
    for (std::int64_t s = 1; s <= 200; ++s) {
      found[static_cast<std::size_t>(s - 1)] = shared.counted_tokens(s);
    }
  });
  for (std::int64_t s = 1; s <= 200; ++s) {
    found[static_cast<std::size_t>(199 + s)] = shared.counted_tokens(s);
  }
  other.join();

  for (std::int64_t s = 1; s <= 200; ++s) {
    EXPECT_EQ(found[static_cast<std::size_t>(s - 1)], alone.counted_tokens(s));
    EXPECT_EQ(found[static_cast<std::size_t>(199 + s)], alone.counted_tokens(s));
  }
}

}  // namespace
}  // namespace hyperslab::test
