// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <list>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.hpp"
#include "files/crc32c.hpp"
#include "fixtures.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"

namespace hyperslab::test {
namespace {

using io::CheckpointReader;

constexpr std::array kDtypes = {DType::f32, DType::f16, DType::u8};

/// A whole tensor of any dtype: element i has the bytes of 3 i + `seed`, the low ones first.
struct Stored {
  DType dtype = DType::f32;
  Shape shape;
  std::string bytes;
};

Stored stored(DType dtype, const Shape& shape, std::uint32_t seed) {
  Stored tensor{dtype, shape, {}};
  for (Dim i = 0; i < shape.numel(); ++i) {
    const auto value = static_cast<std::uint32_t>(3 * i) + seed;
    tensor.bytes.append(reinterpret_cast<const char*>(&value), size_of(dtype));
  }
  return tensor;
}

std::string bytes_of(const Stored& tensor, const Hyperslab& part) {
  Global numbers{tensor.shape, {}};
  for (Dim i = 0; i < tensor.shape.numel(); ++i) numbers.values.push_back(static_cast<float>(i));
  const std::size_t size = size_of(tensor.dtype);
  std::string bytes;
  for (const float i : cut(numbers, part)) {
    bytes += tensor.bytes.substr(static_cast<std::size_t>(i) * size, size);
  }
  return bytes;
}

/// The slabs of one rank; a list keeps their bytes in place.
struct Rank {
  std::list<std::string> memory;
  RankSlabs slabs;
  void add(const std::string& name, const Stored& tensor, const Hyperslab& part) {
    memory.push_back(bytes_of(tensor, part));
    slabs.slabs.push_back({name, tensor.shape, part,
                           CView(memory.back().data(), tensor.dtype, Device::cpu, part.count)});
  }
};

std::vector<std::string> save(const std::string& directory, const std::vector<Rank>& ranks,
                              std::size_t block_bytes = CheckpointReader::kBlockBytes) {
  std::vector<RankSlabs> slabs;
  for (const Rank& rank : ranks) slabs.push_back({{}, rank.slabs.slabs});
  return save_all(directory, {}, slabs, {.block_bytes = block_bytes, .writers = 2});
}

using Tensors = std::map<std::string, Stored>;

Tensors some_tensors() {
  return {{"model/codes", stored(DType::u8, {13, 7}, 5)},
          {"model/scales", stored(DType::f16, {13, 5}, 9)},
          {"model/norm.weight", stored(DType::f32, {17}, 1000)},
          {"model/table", stored(DType::u8, {3, 5, 7}, 2)}};
}

std::vector<Rank> scattered(const Tensors& tensors, std::size_t ranks, std::mt19937& rng) {
  std::vector<Rank> out(ranks);
  for (const auto& [name, tensor] : tensors) {
    for (const Hyperslab& part : random_partition(tensor.shape, 4, rng)) {
      if (part.numel() > 0) out[rng() % ranks].add(name, tensor, part);
    }
  }
  return out;
}

std::string read_part(const CheckpointReader& reader, const std::string& name, DType dtype,
                      const Hyperslab& part) {
  std::string bytes(static_cast<std::size_t>(part.numel()) * size_of(dtype), '\xEE');
  const io::SlabTarget target{name, reader.tensors().at(name).global_shape, part,
                              View(bytes.data(), dtype, Device::cpu, part.count)};
  reader.read(std::span(&target, 1));
  return bytes;
}

void expect_stored(const CheckpointReader& reader, const Tensors& tensors, std::mt19937& rng) {
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(reader.tensors().at(name).dtype, tensor.dtype) << name;
    for (const Hyperslab& part : random_partition(tensor.shape, 3, rng)) {
      EXPECT_EQ(read_part(reader, name, tensor.dtype, part), bytes_of(tensor, part)) << name;
    }
  }
}

TEST(Dtypes, AnyLayoutLoadsAnyLayout) {
  const Tensors tensors = some_tensors();
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const TempFolder folder;
    std::mt19937 rng(seed);
    const std::size_t ranks = 1 + seed % 3;
    ASSERT_EQ(save(folder.path(), scattered(tensors, ranks, rng), 4 * (1 + rng() % 9)),
              std::vector<std::string>(ranks));

    const CheckpointReader reader(folder.path());
    EXPECT_EQ(reader.verify(), std::vector<std::string>{});
    expect_stored(reader, tensors, rng);
  }
}

TEST(Dtypes, PartsOfACheckpointHoldThem) {
  const TempFolder folder;
  const Tensors tensors = some_tensors();
  io::CheckpointParts parts(folder.path(), {}, 1000);
  for (const auto& [name, tensor] : tensors) {
    Rank part;
    part.add(name, tensor, Hyperslab::whole(tensor.shape));
    parts.add(part.slabs.slabs);
  }
  parts.commit();

  const CheckpointReader reader(folder.path());
  std::mt19937 rng(1);
  EXPECT_EQ(reader.files().size(), tensors.size());
  expect_stored(reader, tensors, rng);
  EXPECT_NE(io::describe(reader).find("(13, 5)               f16  1 piece\n"), std::string::npos)
      << io::describe(reader);
}

TEST(Dtypes, AFlippedBitNamesItsTensorAndBlock) {
  const TempFolder folder;
  std::mt19937 rng(3);
  ASSERT_EQ(save(folder.path(), scattered(some_tensors(), 2, rng), 16),
            std::vector<std::string>(2));
  const CheckpointReader reader(folder.path());
  for (const auto& [name, entry] : reader.tensors()) {
    for (const auto& piece : entry.pieces) {
      const std::string path = reader.folder() + "/" + piece.file;
      const std::string sound = read_file(path);
      std::string damaged = sound;
      const auto bytes = static_cast<std::size_t>(piece.part.numel()) * size_of(entry.dtype);
      damaged[piece.file_offset + bytes - 1] ^= 4;
      write_file(path, damaged);

      const std::string block =
          "tensor " + name + ", block " + std::to_string((bytes - 1) / 16) + " of " + piece.file;
      const auto problems = reader.verify();
      ASSERT_EQ(problems.size(), 1U) << block;
      EXPECT_EQ(problems[0].find(block), 0U) << problems[0];
      const auto text = refusal(ExitCode::checkpoint, [&] {
        (void)read_part(reader, name, entry.dtype, Hyperslab::whole(entry.global_shape));
      });
      EXPECT_NE(text.find(block), std::string::npos) << text;
      write_file(path, sound);
    }
  }
}

TEST(Dtypes, TargetsOfAnotherAreListedByName) {
  const TempFolder folder;
  std::mt19937 rng(3);
  ASSERT_EQ(save(folder.path(), scattered(some_tensors(), 1, rng)), std::vector<std::string>(1));
  const CheckpointReader reader(folder.path());
  std::vector<float> memory(200);
  std::vector<io::SlabTarget> targets;
  for (const auto& [name, entry] : reader.tensors()) {
    const Shape& shape = entry.global_shape;
    targets.push_back({name, shape, Hyperslab::whole(shape),
                       View(memory.data(), DType::f32, Device::cpu, shape)});
  }

  const auto text = refusal(ExitCode::checkpoint, [&] { reader.read(targets); });

  for (const char* part : {"0 missing, 0 of another shape, 3 of another dtype",
                           "other dtype: model/codes is u8, asked for as f32",
                           "other dtype: model/scales is f16, asked for as f32"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("model/norm.weight"), std::string::npos) << text;
  EXPECT_NO_THROW(reader.check(targets)) << "names and shapes fit";
}

TEST(Dtypes, SlabsOfATensorAgree) {
  const TempFolder folder;
  std::vector<Rank> ranks(2);
  ranks[0].add("model/a", stored(DType::u8, {4}, 0), {{0}, {2}});
  ranks[1].add("model/a", stored(DType::f16, {4}, 0), {{2}, {2}});
  auto errors = save(folder.path(), ranks);
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("tensor model/a has the dtypes u8 and f16"), std::string::npos)
      << errors[0];

  std::vector<Rank> one(1);
  one[0].add("model/a", stored(DType::u8, {4}, 0), {{0}, {2}});
  one[0].add("model/a", stored(DType::f32, {4}, 0), {{2}, {2}});
  errors = save(folder.path(), one);
  EXPECT_NE(errors[0].find("tensor model/a has slabs of u8 and of f32"), std::string::npos)
      << errors[0];

  std::vector<Rank> other(1);
  other[0].add("model/a", stored(DType::bf16, {4}, 0), {{0}, {4}});
  errors = save(folder.path(), other);
  EXPECT_NE(errors[0].find("are bf16 on cpu, expected f32, f16 or u8 on cpu"), std::string::npos)
      << errors[0];
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// The manifest of one tensor with `change` made to it, and its checksum made good.
std::string manifest_text(DType dtype, const std::function<void(nlohmann::json&)>& change) {
  const TempFolder folder;
  std::vector<Rank> ranks(1);
  ranks[0].add("model/a", stored(dtype, {4}, 0), {{0}, {4}});
  EXPECT_EQ(save(folder.path(), ranks), std::vector<std::string>(1));
  auto value = nlohmann::json::parse(read_file(folder.path() + "/step_00000000/manifest.json"));
  value.erase("crc32c");
  change(value);
  const std::string bare = value.dump();
  value["crc32c"] = io::crc32c(bare.data(), bare.size());
  return value.dump();
}

TEST(Dtypes, OnlyOthersThanF32AskForFormat2) {
  for (const DType dtype : kDtypes) {
    const int format = dtype == DType::f32 ? 1 : 2;
    const std::string text = manifest_text(dtype, [&](nlohmann::json& value) {
      EXPECT_EQ(value["format"], format);
      EXPECT_EQ(value["tensors"]["model/a"]["dtype"], name_of(dtype));
    });
    EXPECT_EQ(io::manifest_of_text(text, "m").tensors.at("model/a").dtype, dtype);
  }
}

TEST(Dtypes, ManifestsThatContradictThemselvesAreRefused) {
  const auto refused = [](DType dtype, const std::function<void(nlohmann::json&)>& change) {
    const std::string text = manifest_text(dtype, change);
    return refusal(ExitCode::checkpoint, [&] { (void)io::manifest_of_text(text, "forged"); });
  };
  const auto renamed = [](const char* name) {
    return [name](nlohmann::json& value) { value["tensors"]["model/a"]["dtype"] = name; };
  };
  EXPECT_EQ(refused(DType::u8, [](nlohmann::json& value) { value["format"] = 1; }),
            "forged: it is of format 1 with tensors of format 2");
  EXPECT_EQ(refused(DType::u8, renamed("i4")),
            "forged: tensor model/a: dtype i4 is none of f32, f16, u8");
  const auto wider = refused(DType::u8, [](nlohmann::json& value) {
    auto& piece = value["tensors"]["model/a"]["pieces"][0];
    piece["file_offset"] = value["files"][0]["bytes"].get<std::uint64_t>() - 4;
    value["tensors"]["model/a"]["dtype"] = "f16";
  });
  EXPECT_NE(wider.find("a piece reaches beyond the end"), std::string::npos) << wider;
}

TEST(Dtypes, TheFingerprintTakesTheirBits) {
  const TempFolder folder;
  Tensors tensors = some_tensors();
  tensors["optimizer/a"] = stored(DType::u8, {3}, 1);  // no parameter
  std::mt19937 rng(5);
  ASSERT_EQ(save(folder.path(), scattered(tensors, 2, rng)), std::vector<std::string>(2));
  tensors.erase("optimizer/a");
  std::uint64_t expected = 0;
  for (const auto& [name, tensor] : tensors) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.shape.numel()); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &tensor.bytes[i * size_of(tensor.dtype)], size_of(tensor.dtype));
      expected += (bits + 1ULL) * ((name_hash(name) + i * 0x9E3779B97F4A7C15ULL) | 1U);
    }
  }

  const CheckpointReader reader(folder.path());

  EXPECT_EQ(io::parameter_fingerprint(reader), expected);
  EXPECT_EQ(io::parameter_fingerprint(reader, 0, 2) + io::parameter_fingerprint(reader, 1, 2),
            expected);
}

TEST(Dtypes, F16IsCheckedForFiniteValuesAndU8IsNot) {
  std::vector<std::uint16_t> half = {0x7BFF, 0xFBFF, 0x0001};  // the largest, the least positive
  std::vector<std::uint8_t> codes(4, 0xFF);
  const std::vector<io::Slab> slabs = {
      {"codes", {4}, {{0}, {4}}, CView(codes.data(), DType::u8, Device::cpu, {4})},
      {"scales", {3}, {{0}, {3}}, CView(half.data(), DType::f16, Device::cpu, {3})}};
  EXPECT_EQ(io::first_not_finite(slabs, {.writers = 2}), "");

  for (const std::uint16_t bad : {0x7C00, 0xFC00, 0x7E01}) {
    half[2] = bad;
    EXPECT_EQ(io::first_not_finite(slabs, {.writers = 2}), "scales");
  }
}

TEST(Dtypes, PythonReadsTheFiles) {
  if (std::system("/usr/bin/python3 -c 'import h5py, numpy' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "h5py is not there";
  }
  const TempFolder folder;
  std::vector<Rank> ranks(1);
  for (const auto& [name, tensor] : some_tensors()) {
    ranks[0].add(name, tensor, Hyperslab::whole(tensor.shape));
  }
  ASSERT_EQ(save(folder.path(), ranks), std::vector<std::string>(1));
  const std::string script = folder.path() + "/check.py";
  write_file(script, R"(
import sys, h5py, numpy
with h5py.File(sys.argv[1], "r") as file:
    assert file.attrs["format_version"] == 2
    for name, dtype, bits, seed in (("codes", "<u1", "<u1", 5), ("scales", "<f2", "<u2", 9),
                                    ("norm.weight", "<f4", "<u4", 1000)):
        slab = file["model/" + name + "/slab_0"]
        assert slab.dtype == numpy.dtype(dtype), slab.dtype
        found = slab[...].ravel()
        expected = (3 * numpy.arange(found.size) + seed).astype(bits)
        assert (found.view(bits) == expected).all(), name
)");
  const std::string command =
      "/usr/bin/python3 " + script + " " + folder.path() + "/step_00000000/rank_00000.h5";

  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace hyperslab::test
