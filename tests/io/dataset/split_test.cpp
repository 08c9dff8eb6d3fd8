// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "dataset/token_writer.hpp"
#include "io/dataset/files.hpp"
#include "io/dataset/hdf5_sets.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr std::int32_t kEnd = 256;

/// Documents of 1 to 40 ids, each different, with their end token.
std::vector<Ids> random_documents(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::set<Ids> made;
  while (made.size() < count) {
    Ids ids(3 + random() % 38);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 256);
    ids.push_back(kEnd);
    made.insert(ids);
  }
  std::vector<Ids> all(made.begin(), made.end());
  std::ranges::shuffle(all, random);
  return all;
}

Ids joined(std::span<const Ids> documents) {
  Ids all;
  for (const Ids& ids : documents) all.insert(all.end(), ids.begin(), ids.end());
  return all;
}

std::vector<Ids> split_at_ends(const Ids& ids) {
  std::vector<Ids> documents(1);
  for (const std::int32_t id : ids) {
    documents.back().push_back(id);
    if (id == kEnd) documents.emplace_back();
  }
  if (documents.back().empty()) documents.pop_back();
  return documents;
}

class Split : public FilesTest {
 protected:
  std::string write(const std::string& name, std::span<const Ids> documents) {
    io::write_token_file(path(name), joined(documents), 257, kEnd);
    return path(name);
  }
  static io::DataConfig config(const std::vector<std::string>& paths, double fraction,
                               std::int32_t end_token = -1) {
    io::DataConfig data;
    data.train = paths;
    data.validation_fraction = fraction;
    data.end_token = end_token;
    return data;
  }
  static io::DataTokens open(const std::vector<std::string>& paths, double fraction,
                             std::int32_t end_token = -1) {
    return io::open_data(config(paths, fraction, end_token), 257, 1);
  }
};

TEST_F(Split, SegmentsOfASideAreThoseOfTheFiles) {
  const auto documents = random_documents(300, 4);
  const std::span<const Ids> all(documents);
  const std::string first = write("a.h5", all.first(100));
  const std::string second = write("b.h5", all.subspan(100));

  const auto tokens = open({first, second}, 0.3);

  for (const io::TokenSource* side : {tokens.train.get(), tokens.validation.get()}) {
    const auto segments = side->segments();
    ASSERT_EQ(segments.size(), 2U);
    EXPECT_EQ(segments[0], 0);
    const Ids ids = read_all(*side);
    std::size_t tokens_of_first = 0;
    for (const Ids& document : split_at_ends(ids)) {
      const bool is_of_first = std::ranges::find(all.first(100), document) != all.first(100).end();
      tokens_of_first += is_of_first ? document.size() : 0;
    }
    EXPECT_EQ(segments[1], static_cast<std::int64_t>(tokens_of_first));
  }
}

TEST_F(Split, EveryDocumentIsOnOneSideOnceAndInOrder) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    const auto documents = random_documents(2000, seed);
    const auto tokens = open({write("all.h5", documents)}, 0.2);

    const auto train = split_at_ends(read_all(*tokens.train));
    const auto validation = split_at_ends(read_all(*tokens.validation));

    const std::set<Ids> held(validation.begin(), validation.end());
    std::vector<Ids> expected_train;
    std::vector<Ids> expected_validation;
    for (const Ids& ids : documents) {
      (held.contains(ids) ? expected_validation : expected_train).push_back(ids);
    }
    EXPECT_EQ(train, expected_train);
    EXPECT_EQ(validation, expected_validation);
    EXPECT_NEAR(static_cast<double>(validation.size()), 400, 90);  // five deviations
  }
}

TEST_F(Split, SideDependsOnTheDocumentAloneAndGrowsWithTheFraction) {
  const auto documents = random_documents(500, 4);
  auto turned = documents;
  std::ranges::reverse(turned);
  const auto sides = [&](const io::DataTokens& tokens) {
    const auto held = split_at_ends(read_all(*tokens.validation));
    return std::set<Ids>(held.begin(), held.end());
  };
  const std::span<const Ids> all(documents);

  const auto small = sides(open({write("a.h5", all)}, 0.1));
  const auto shards =
      sides(open({write("b0.npy", all.first(200)), write("b1.bin", all.subspan(200))}, 0.1, kEnd));
  const auto backwards = sides(open({write("c.bin", turned)}, 0.1, kEnd));
  const auto large = sides(open({path("a.h5")}, 0.3));

  EXPECT_EQ(small, shards);
  EXPECT_EQ(small, backwards);
  EXPECT_GT(large.size(), small.size());
  EXPECT_TRUE(std::ranges::includes(large, small));
}

TEST_F(Split, ReadsAnyPieceAndItsMask) {
  const auto documents = random_documents(300, 5);
  const Ids ids = joined(documents);
  std::vector<std::int64_t> wide(ids.begin(), ids.end());
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> mask;
  for (const Ids& document : documents) {
    starts.push_back(std::ssize(mask));
    for (const auto id : document) mask.push_back(id % 2);
  }
  write_hdf5(path("masked.h5"), {{"tokens", H5T_STD_U16LE, wide},
                                 {"documents", H5T_STD_I64LE, starts},
                                 {"loss_mask", H5T_STD_U8LE, mask}});
  auto data = config({path("masked.h5")}, 0.3);
  data.loss_mask = true;
  const auto tokens = io::open_data(data, 257, 1);

  const Ids all = read_all(*tokens.validation);
  std::mt19937 random(6);
  ASSERT_TRUE(tokens.validation->has_mask());
  for (int i = 0; i < 500; ++i) {
    const auto first = random() % all.size();
    const auto count = 1 + random() % (all.size() - first);
    Ids part(count);
    std::vector<std::uint8_t> masks(count);
    tokens.validation->read(static_cast<std::int64_t>(first), part);
    tokens.validation->read_mask(static_cast<std::int64_t>(first), masks);
    for (std::size_t j = 0; j < count; ++j) {
      ASSERT_EQ(part[j], all[first + j]);
      ASSERT_EQ(masks[j], part[j] % 2);
    }
  }
  Ids too_many(all.size() + 1);
  EXPECT_THROW(tokens.validation->read(0, too_many), Error);
}

TEST_F(Split, FingerprintFollowsTheFilesTheFractionAndTheSide) {
  const auto documents = random_documents(500, 7);
  write("a.h5", documents);
  write("b.h5", random_documents(500, 8));

  const auto tokens = open({path("a.h5")}, 0.1);
  EXPECT_EQ(tokens.train->fingerprint(), open({path("a.h5")}, 0.1).train->fingerprint());
  EXPECT_NE(tokens.train->fingerprint(), tokens.validation->fingerprint());
  EXPECT_NE(tokens.train->fingerprint(), open({path("a.h5")}, 0.2).train->fingerprint());
  EXPECT_NE(tokens.train->fingerprint(), open({path("b.h5")}, 0.1).train->fingerprint());
}

TEST_F(Split, SaysWhatIsMissing) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const auto documents = random_documents(50, 9);
  write("a.bin", documents);
  write("one.h5", std::span(documents).first(1));
  write_hdf5(path("plain.h5"), {{"tokens", H5T_STD_U16LE, {1, 2, 3}}});
  write_hdf5(path("late.h5"),
             {{"tokens", H5T_STD_U16LE, {1, 2, 3}}, {"documents", H5T_STD_I64LE, {1, 2}}});
  write_hdf5(path("back.h5"),
             {{"tokens", H5T_STD_U16LE, {1, 2, 3}}, {"documents", H5T_STD_I64LE, {0, 2, 1}}});
  write_hdf5(path("far.h5"),
             {{"tokens", H5T_STD_U16LE, {1, 2, 3}}, {"documents", H5T_STD_I64LE, {0, 3}}});
  const auto refuse = [&](const std::string& name, std::initializer_list<std::string> parts) {
    expect_error(ExitCode::data, parts, [&] { open({name}, 0.1); });
  };

  refuse(path("a.bin"), {path("a.bin"), "list of its documents", "data.end_token"});
  refuse(path("plain.h5"), {path("plain.h5"), "data.end_token"});
  refuse(path("late.h5"), {"ascend from 0", "2 other"});
  refuse(path("back.h5"), {"ascend from 0"});
  refuse(path("far.h5"), {"below 3"});
  refuse(path("one.h5"), {"both sides", "0.1", "among 1"});
  refuse("synthetic", {"synthetic", "data.validation_fraction"});
  EXPECT_EQ(open({path("a.bin")}, 0.5, kEnd).train->size() +
                open({path("a.bin")}, 0.5, kEnd).validation->size(),
            std::ssize(joined(documents)));
}

TEST_F(Split, TrainingOnBytesTakesNoOtherIds) {
  io::write_token_file(path("bytes.bin"), Ids{0, 255, 256}, 300);
  io::write_token_file(path("others.bin"), Ids{0, 255, 299}, 300);
  io::DataConfig data;
  data.train = {path("others.bin")};
  EXPECT_NE(io::open_data(data, 300, 1).train, nullptr);
  data.vocabulary = "bytes";
  expect_error(ExitCode::data, {"id 299", "data.vocabulary"},
               [&] { (void)io::open_data(data, 300, 1); });
  data.train = {path("bytes.bin")};
  data.validation = {path("others.bin")};
  EXPECT_NE(io::open_data(data, 300, 1).validation, nullptr);
}

TEST_F(Split, WithoutAFractionTheDecksFilesAreTaken) {
  const auto documents = random_documents(5, 9);
  io::DataConfig data;
  data.train = {write("train.bin", documents)};
  EXPECT_EQ(io::open_data(data, 257, 1).validation, nullptr);
  data.validation = {write("held.npy", std::span(documents).first(2))};

  const auto both = io::open_data(data, 257, 1);
  const auto held = io::open_data(data, 257, 1, io::DataPart::validation);

  EXPECT_EQ(read_all(*both.train), joined(documents));
  EXPECT_EQ(read_all(*both.validation), joined(std::span(documents).first(2)));
  EXPECT_EQ(held.train, nullptr);
  EXPECT_EQ(read_all(*held.validation), read_all(*both.validation));
}

}  // namespace
}  // namespace hyperslab::test
