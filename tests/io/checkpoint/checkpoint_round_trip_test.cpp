// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/manifest.hpp"
#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "fixtures.hpp"

namespace hyperslab::test {
namespace {

using io::CheckpointReader;

io::CheckpointMeta full_meta() {
  io::CheckpointMeta meta;
  meta.step = 120;
  meta.samples_seen = 61440;
  meta.tokens_seen = std::int64_t{1} << 40;
  meta.adam_step = 118;
  meta.skipped_steps = 2;
  meta.loss_scale = 65536;
  meta.good_steps = 7;
  meta.wall_seconds = 0.1;
  meta.data_fingerprint = 0xFFFFFFFFFFFFFFFFULL;
  meta.layout = "data 2 x tensor 2 x pipeline 1";
  meta.deck = "run: {name: \"a\"}\n# \xC3\xA9\n";
  meta.version = "0.1.0 (abc)";
  meta.algorithms = "first\nsecond\n";
  meta.spikes = R"({"seen":3})";
  meta.scales_loss = true;
  return meta;
}

std::map<std::string, Shape> some_shapes() {
  return {{"model/embedding.weight", {31, 8}},
          {"model/blocks.0.attention.query.weight", {8, 8}},
          {"model/scalar", {}},
          {"optimizer/exp_avg/embedding.weight", {31, 8}},
          {"optimizer/exp_avg/blocks.0.norm.weight", {17}}};
}

TEST(RoundTrip, EveryFieldOfTheMetaComesBack) {
  const TempFolder folder;
  const Globals globals = make_globals(some_shapes(), 1);
  const io::CheckpointMeta meta = full_meta();
  std::mt19937 rng(7);
  const auto ranks = scatter(globals, 3, 4, rng);

  ASSERT_EQ(save_all(folder.path(), meta, ranks), std::vector<std::string>(3));

  const CheckpointReader reader(folder.path());
  EXPECT_EQ(reader.folder(), folder.path() + "/step_00000120");
  EXPECT_EQ(read_file(folder.path() + "/latest"), "step_00000120\n");
  const io::CheckpointMeta& found = reader.meta();
  EXPECT_EQ(found.step, meta.step);
  EXPECT_EQ(found.samples_seen, meta.samples_seen);
  EXPECT_EQ(found.tokens_seen, meta.tokens_seen);
  EXPECT_EQ(found.adam_step, meta.adam_step);
  EXPECT_EQ(found.skipped_steps, meta.skipped_steps);
  EXPECT_EQ(found.loss_scale, meta.loss_scale);
  EXPECT_EQ(found.good_steps, meta.good_steps);
  EXPECT_EQ(found.wall_seconds, meta.wall_seconds);
  EXPECT_EQ(found.data_fingerprint, meta.data_fingerprint);
  EXPECT_EQ(found.layout, meta.layout);
  EXPECT_EQ(found.deck, meta.deck);
  EXPECT_EQ(found.spikes, meta.spikes);
  EXPECT_EQ(found.version, meta.version);
  EXPECT_EQ(found.algorithms, meta.algorithms);
  EXPECT_TRUE(found.scales_loss);
  EXPECT_EQ(reader.files().size(), 3U);
  EXPECT_GE(reader.bytes(), (31 * 8 * 2 + 64 + 17 + 1) * 4U);
  EXPECT_EQ(reader.verify(), std::vector<std::string>{});
  expect_same(read_whole(reader), globals);
}

/// The text of a manifest with `change` made to it, and its checksum made good.
template <class Change>
std::string changed_text(const io::CheckpointMeta& meta, Change change) {
  io::Manifest manifest;
  manifest.meta = meta;
  manifest.block_bytes = 64;
  auto value = nlohmann::json::parse(io::to_text(manifest));
  value.erase("crc32c");
  change(value);
  const std::string bare = value.dump();
  value["crc32c"] = io::crc32c(bare.data(), bare.size());
  return value.dump();
}

TEST(Manifest, EarlierOnesThatDoNotNameTheLossScalingAreReadByTheirDeck) {
  const auto scales = [](const io::CheckpointMeta& meta) {
    const std::string text = changed_text(meta, [](auto& value) { value.erase("scales_loss"); });
    return io::manifest_of_text(text, "old").meta.scales_loss;
  };
  io::CheckpointMeta meta;
  meta.samples_seen = 24;
  meta.deck = "run:\n  name: a\nprecision:\n  compute: fp16\n";
  EXPECT_TRUE(scales(meta)) << "its scale has fallen to 1";
  meta.samples_seen = 0;
  EXPECT_FALSE(scales(meta)) << "an import";
  meta.samples_seen = 24;
  meta.deck = "precision:\n  compute: bf16\n";
  EXPECT_FALSE(scales(meta));
  meta.loss_scale = 1024;
  EXPECT_TRUE(scales(meta));
}

TEST(Manifest, TheFieldCountsAndNotTheDeck) {
  io::CheckpointMeta meta;
  meta.samples_seen = 24;
  meta.deck = "precision:\n  compute: fp16\n";
  meta.loss_scale = 8;
  for (const bool scales : {false, true}) {
    meta.scales_loss = scales;
    const std::string text = changed_text(meta, [](auto&) {});
    EXPECT_EQ(io::manifest_of_text(text, "new").meta.scales_loss, scales);
  }
}

TEST(Manifest, CountsThatAreNotPossibleAreRefused) {
  for (const char* key : {"step", "samples_seen", "adam_step", "format"}) {
    const std::string text = changed_text({}, [&](auto& value) { value[key] = -1; });
    (void)refusal(ExitCode::checkpoint, [&] { (void)io::manifest_of_text(text, "forged"); });
  }
}

TEST(RoundTrip, AStepUnderTheNameOfAnotherIsRefused) {
  const TempFolder folder;
  save_well(folder.path(), 5, make_globals({{"model/a", {3}}}, 1));
  std::filesystem::rename(folder.path() + "/step_00000005", folder.path() + "/step_00000012");

  const std::string text = refusal(ExitCode::checkpoint, [&] {
    const CheckpointReader reader(folder.path() + "/step_00000012");
  });

  EXPECT_NE(text.find("it is of step 5; give the folder the name step_00000005"), std::string::npos)
      << text;
  EXPECT_TRUE(io::list_checkpoints(folder.path()).empty());
}

TEST(RoundTrip, EqualCheckpointsAreEqualFiles) {
  const TempFolder one;
  const TempFolder other;
  const Globals globals = make_globals(some_shapes(), 1);
  save_well(one.path(), 5, globals);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5 counts seconds
  save_well(other.path(), 5, globals);

  const std::string name = "/step_00000005/rank_00000.h5";
  EXPECT_TRUE(read_file(one.path() + name) == read_file(other.path() + name));
}

TEST(RoundTrip, DescribeShowsTheModelOnly) {
  const TempFolder folder;
  ASSERT_EQ(save_all(folder.path(), full_meta(), whole(make_globals(some_shapes(), 1))),
            std::vector<std::string>{""});

  const std::string text = io::describe(CheckpointReader(folder.path()));

  for (const char* part :
       {"step     120", "data 2 x tensor 2 x pipeline 1", "1099511627776", "0.1.0 (abc)",
        "tensors  5", "model/embedding.weight", "(31, 8)", "1 piece\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("optimizer/"), std::string::npos) << text;
}

TEST(RoundTrip, DescribeShowsNoControlCharacters) {
  const TempFolder folder;
  auto meta = full_meta();
  meta.version = "1\x1B[2J\n\xC2\x9B";
  meta.layout = "data\x07";
  ASSERT_EQ(save_all(folder.path(), meta, whole(make_globals(some_shapes(), 1))),
            std::vector<std::string>{""});

  const std::string text = io::describe(CheckpointReader(folder.path()));

  EXPECT_NE(text.find("version  1?[2J??\n"), std::string::npos) << text;
  EXPECT_NE(text.find("layout   data?\n"), std::string::npos) << text;
}

/// Reads the parts of a random partition and compares each with the part of the whole.
void expect_parts(const CheckpointReader& reader, const Globals& globals, std::mt19937& rng) {
  std::vector<std::vector<float>> expected;
  std::vector<std::vector<float>> memory;
  std::vector<io::SlabTarget> targets;
  for (const auto& [name, global] : globals) {
    for (const Hyperslab& slab : random_partition(global.shape, static_cast<int>(rng() % 6), rng)) {
      expected.push_back(cut(global, slab));
      memory.emplace_back(expected.back().size(), -1.0F);
      targets.push_back({name, global.shape, slab,
                         View(memory.back().data(), DType::f32, Device::cpu, slab.count)});
    }
  }
  std::shuffle(targets.begin(), targets.end(), rng);

  reader.read(targets);

  EXPECT_TRUE(memory == expected);
}

TEST(RoundTrip, AnyLayoutLoadsAnyLayout) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const TempFolder folder;
    std::mt19937 rng(seed);
    std::map<std::string, Shape> shapes;
    const int tensors = 1 + static_cast<int>(rng() % 4);
    for (int t = 0; t < tensors; ++t) {
      std::vector<Dim> dims(1 + rng() % 4);
      for (Dim& dim : dims) dim = 1 + static_cast<Dim>(rng() % 9);
      shapes["model/t" + std::to_string(t)] = Shape(std::span<const Dim>(dims));
    }
    const Globals globals = make_globals(shapes, static_cast<float>(seed));
    const auto ranks =
        scatter(globals, 1 + static_cast<int>(rng() % 4), static_cast<int>(rng() % 8), rng);
    // Blocks of a few elements: runs and blocks cross in every way.
    const io::SaveOptions options{.block_bytes = 4 * (1 + rng() % 40), .writers = 2};
    ASSERT_EQ(save_all(folder.path(), {}, ranks, options), std::vector<std::string>(ranks.size()));

    const CheckpointReader reader(folder.path());
    EXPECT_EQ(reader.verify(), std::vector<std::string>{});
    for (int layout = 0; layout < 4; ++layout) expect_parts(reader, globals, rng);
  }
}

TEST(RoundTrip, BlocksOf64MiBAndTheLastShorter) {
  const TempFolder folder;
  const Dim rows = 17 * 1024 + 3;  // of 4 KiB: 68 MiB
  const Globals globals = make_globals({{"model/large", {rows, 1024}}}, 0.5F);
  ASSERT_EQ(save_all(folder.path(), {}, whole(globals)), std::vector<std::string>{""});

  const CheckpointReader reader(folder.path());

  EXPECT_EQ(reader.tensors().at("model/large").pieces.at(0).crc32c.size(), 2U);
  expect_same(read_whole(reader), globals);
}

TEST(RoundTrip, EmptySlabsAndRanksWithoutSlabsAreFine) {
  const TempFolder folder;
  const Globals globals = make_globals({{"model/a", {4, 3}}}, 2);
  std::vector<RankSlabs> ranks(3);
  ranks[1].add("model/a", globals.at("model/a"), {{0, 0}, {4, 3}});
  ranks[2].add("model/a", globals.at("model/a"), {{4, 0}, {0, 3}});
  ranks[2].slabs.back().data = CView();

  ASSERT_EQ(save_all(folder.path(), {}, ranks), std::vector<std::string>(3));

  const CheckpointReader reader(folder.path());
  EXPECT_EQ(reader.files().size(), 3U);
  EXPECT_EQ(reader.tensors().at("model/a").pieces.size(), 1U);
  expect_same(read_whole(reader), globals);
}

TEST(RoundTrip, SlabsThatMeetOrLeaveGapsAreRefusedOnEveryRank) {
  const TempFolder folder;
  const Globals globals = make_globals({{"model/a", {4, 3}}}, 2);
  std::vector<RankSlabs> ranks(2);
  ranks[0].add("model/a", globals.at("model/a"), {{0, 0}, {4, 3}});
  ranks[1].add("model/a", globals.at("model/a"), {{3, 1}, {1, 1}});

  const auto errors = save_all(folder.path(), {}, ranks);

  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("model/a: 1 elements from offset (3, 1) are stored more than once"),
            std::string::npos)
      << errors[0];
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(RoundTrip, PythonReadsTheFiles) {
  if (std::system("/usr/bin/python3 -c 'import h5py, numpy' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "h5py is not there";
  }
  const TempFolder folder;
  const Globals globals = make_globals({{"model/blocks.0.attention.query.weight", {40, 700}}}, 3);
  std::vector<RankSlabs> ranks(2);
  const auto& [name, global] = *globals.begin();
  ranks[0].add(name, global, {{0, 0}, {40, 300}});
  ranks[1].add(name, global, {{0, 300}, {13, 400}});
  ranks[1].add(name, global, {{13, 300}, {27, 400}});
  io::CheckpointMeta meta;
  meta.step = 7;
  meta.layout = "data 2 x tensor 1 x pipeline 1";
  ASSERT_EQ(save_all(folder.path(), meta, ranks), std::vector<std::string>(2));
  const std::string script = folder.path() + "/check.py";
  write_file(script, R"(
import sys, h5py, numpy
folder, name = sys.argv[1:]
whole = numpy.full((40, 700), -1, numpy.float32)
count = 0
for rank in range(2):
    with h5py.File(f"{folder}/rank_{rank:05d}.h5", "r") as file:
        assert file.attrs["format"] == "hyperslab checkpoint" and file.attrs["format_version"] == 1
        assert file.attrs["step"] == 7 and file.attrs["rank"] == rank
        assert file.attrs["layout"] == "data 2 x tensor 1 x pipeline 1"
        for slab in file[name].values():
            assert slab.dtype == numpy.float32 and slab.chunks is None
            assert list(slab.attrs["global_shape"]) == [40, 700]
            assert list(slab.attrs["count"]) == list(slab.shape)
            where = tuple(slice(o, o + c) for o, c in zip(slab.attrs["offset"], slab.attrs["count"]))
            whole[where] = slab[...]
            count += 1
assert count == 3
assert (whole.ravel() == 3.125 + numpy.arange(28000)).all()
)");
  const std::string command =
      "/usr/bin/python3 " + script + " " + folder.path() + "/step_00000007 " + name;

  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(RoundTrip, AllTensorsThatDoNotFitAreListedAtOnce) {
  const TempFolder folder;
  save_well(folder.path(), 5, make_globals({{"model/a", {4, 3}}, {"model/b", {4}}}, 2));
  const CheckpointReader reader(folder.path());
  std::vector<io::SlabTarget> targets{{"model/a", {4, 4}, {{0, 0}, {0, 0}}, View()}};
  for (int i = 0; i < 30; ++i) {
    targets.push_back({"model/missing" + std::to_string(i), {2}, {{0}, {0}}, View()});
  }

  const auto text = refusal(ExitCode::checkpoint, [&] { reader.read(targets); });

  for (const char* part :
       {"30 missing, 1 of another shape", "other shape: model/a is (4, 3), expected (4, 4)",
        "missing: model/missing0 (2)", "and 12 more"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }

  const std::vector<io::SlabTarget> one{{"model/c", {2}, {{0}, {0}}, View()}};
  const auto hint = refusal(ExitCode::checkpoint, [&] { reader.read(one); });
  EXPECT_NE(hint.find("unexpected: model/b (4)"), std::string::npos) << hint;
}

}  // namespace
}  // namespace hyperslab::test
