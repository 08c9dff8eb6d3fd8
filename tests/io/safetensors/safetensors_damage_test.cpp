// SPDX-License-Identifier: Apache-2.0
// Files that lie: every one is refused with the names of file and tensor, none is believed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "files.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/io/safetensors.hpp"

namespace hyperslab::io {
namespace {

using ::testing::HasSubstr;

std::string refused(const std::string& path) {
  std::string text =
      test::refusal(ExitCode::checkpoint, [&] { const SafetensorsReader reader(path); });
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_LT(text.size(), 1000) << text;
  return text;
}

/// A header over eight bytes of data, and what the refusal must say.
struct Lie {
  const char* header;
  const char* says;
};

const std::array kLies = {
    Lie{R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "not within the 8 bytes"},
    Lie{R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "not within"},
    Lie{R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
        "has 4 bytes, the header gives it 8"},
    Lie{R"({"x":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,8]}})", "has 4 bytes"},
    Lie{R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
        R"("y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
        "overlap"},
    Lie{R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "belong to no tensor"},
    Lie{R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "belong to no tensor"},
    Lie{R"({})", "belong to no tensor"},
    Lie{R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
        R"("x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
        "stands twice"},
    Lie{R"({"x":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}})", "stands twice"},
    Lie{R"({"x":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}})", "dtype \"F4\" is not known"},
    Lie{R"({"x":{"dtype":32,"shape":[2],"data_offsets":[0,8]}})", "dtype"},
    Lie{R"({"x":{"shape":[2],"data_offsets":[0,8]}})", "has no dtype"},
    Lie{R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", "has no shape"},
    Lie{R"({"x":{"dtype":"F32","shape":[2]}})", "has no data_offsets"},
    Lie{R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "shape"},
    Lie{R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "whole number"},
    Lie{R"({"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "whole number"},
    Lie{R"({"x":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}})",
        "whole number"},
    Lie{R"({"x":{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,0]}})",
        "more elements"},
    Lie{R"({"x":{"dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0]}})",
        "more elements"},
    Lie{R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", "two numbers"},
    Lie{R"({"x":{"dtype":"F32","shape":[2],"data_offsets":["0",8]}})", "whole number"},
    Lie{R"({"x":[]})", "expected dtype, shape and data_offsets"},
    Lie{R"({"x":{"dtype":"F32")", "damaged JSON"},
    Lie{R"([1])", "no JSON object"},
    Lie{"{\"\xff\":{}}", "damaged JSON"},
};

TEST(SafetensorsDamage, DeepNestingIsRefused) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  const std::string header = R"({"x":)" + std::string(100, '[') + std::string(100, ']') + "}";
  test::write_file(path, test::file_of(header, ""));

  EXPECT_THAT(refused(path), HasSubstr("too deep"));
}

TEST(SafetensorsDamage, AHeaderOfManyTensorsTakesNoQuadraticTime) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += "\"x" + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)";
  }
  header += R"("x0":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
  test::write_file(path, test::file_of(header, ""));

  EXPECT_THAT(refused(path), HasSubstr("stands twice"));
}

TEST(SafetensorsDamage, EveryLieOfAHeaderIsRefused) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  for (const Lie& lie : kLies) {
    test::write_file(path, test::file_of(lie.header, std::string(8, '\0')));

    const std::string text = refused(path);

    EXPECT_THAT(text, HasSubstr(lie.says)) << lie.header;
    EXPECT_THAT(text, HasSubstr(path)) << lie.header;
  }
}

TEST(SafetensorsDamage, LengthsThatAFileCannotHaveAreRefusedBeforeMemoryIsTaken) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  const std::vector<std::uint64_t> lengths = {3, 100'000'001, 1ULL << 40, ~0ULL, ~0ULL - 7};
  for (const std::uint64_t length : lengths) {
    test::write_file(path, test::bytes_of(std::vector{length}) + "{}");
    EXPECT_THAT(refused(path), HasSubstr("its header claims " + std::to_string(length)));
  }
  test::write_file(path, "1234567");
  EXPECT_THAT(refused(path), HasSubstr("too few"));
  test::write_file(path, test::file_of("", ""));
  EXPECT_THAT(refused(path), HasSubstr("no JSON object"));
  EXPECT_THAT(refused(temp.path() + "/none.safetensors"), HasSubstr("cannot read it"));
}

TEST(SafetensorsDamage, AFileOfMoreThanTheLargestHeaderIsRefused) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  test::write_file(path, test::bytes_of(std::vector<std::uint64_t>{100'000'001}) + "{");
  std::filesystem::resize_file(path, 200'000'000);  // a hole: takes no storage

  EXPECT_THAT(refused(path), HasSubstr("at most 100000000 are read"));
}

/// A folder with an index of this weight_map and one good file of the tensor x.
std::string with_index(const test::TempFolder& temp, const std::string& index) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  test::write_file(temp.path() + "/part.safetensors", test::file_of(header, std::string(8, '\0')));
  test::write_file(temp.path() + "/model.safetensors.index.json", index);
  return temp.path();
}

TEST(SafetensorsDamage, EveryLieOfAnIndexIsRefused) {
  const test::TempFolder temp;
  EXPECT_NO_THROW(
      SafetensorsReader(with_index(temp, R"({"weight_map":{"x":"part.safetensors"}})")));
  const std::array lies = {
      Lie{R"({"weight_map":{"y":"part.safetensors"}})", "\"y\" is not in part.safetensors"},
      Lie{R"({"weight_map":{"x":"gone.safetensors"}})", "cannot read it"},
      Lie{R"({"weight_map":{"x":"../part.safetensors"}})", "in the same folder"},
      Lie{R"({"weight_map":{"x":".."}})", "in the same folder"},
      Lie{R"({"weight_map":{"x":3}})", "in the same folder"},
      Lie{R"({"weight_map":{}})", "weight_map"},
      Lie{R"({"weight_map":{"x":"part.safetensors","x":"part.safetensors"}})", "stands twice"},
      Lie{R"({})", "weight_map"},
      Lie{R"([])", "JSON object"},
      Lie{"", "damaged JSON"},
  };
  for (const Lie& lie : lies) {
    EXPECT_THAT(refused(with_index(temp, lie.header)), HasSubstr(lie.says)) << lie.header;
  }
}

TEST(SafetensorsDamage, FoldersWithoutSafetensorsSayWhatToDo) {
  const test::TempFolder temp;
  EXPECT_THAT(refused(temp.path()), HasSubstr("neither model.safetensors nor its index"));

  test::write_file(temp.path() + "/pytorch_model.bin", "");

  EXPECT_THAT(refused(temp.path()), HasSubstr("safe_serialization"));
}

TEST(SafetensorsDamage, AFileThatIsCutAfterOpeningIsNoticed) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  for (const std::string& dtype : {std::string("F32"), std::string("F16")}) {
    const int bytes = dtype == "F32" ? 8 : 4;
    const std::string header = R"({"x":{"dtype":")" + dtype +
                               R"(","shape":[2],"data_offsets":[0,)" + std::to_string(bytes) +
                               "]}}";
    test::write_file(path,
                     test::file_of(header, std::string(static_cast<std::size_t>(bytes), '1')));
    const SafetensorsReader reader(path);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    Tensor out(Device::cpu, DType::f32, {2});

    EXPECT_THAT(test::refusal(ExitCode::checkpoint, [&] { reader.read("x", out.view()); }),
                HasSubstr("it was cut"));
  }
}

/// Reads everything of a file that may be damaged; true if nothing was refused.
bool read_all(const std::string& path) {
  try {
    const SafetensorsReader reader(path);
    for (const auto& [name, entry] : reader.tensors()) {
      if (entry.shape.size() > kMaxRank || entry.dtype == "I32") continue;
      const Shape shape{std::span<const Dim>(entry.shape)};
      Tensor out(Device::cpu, DType::f32, shape);
      reader.read(name, out.view());
    }
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint) << error.what();
    return false;
  }
}

TEST(SafetensorsDamage, RandomChangesAreRefusedOrHarmless) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                             R"("y":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
                             R"("z":{"dtype":"I32","shape":[],"data_offsets":[22,26]}})";
  const std::string good = test::file_of(header, std::string(26, '\1'));
  constexpr std::string_view kAlphabet = "0123456789{}[]\",:F-.ex \\\0";
  std::mt19937 rng(17);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng()) % n; };
  int refusals = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    const auto changes = 1 + below(3);
    for (std::size_t change = 0; change < changes && !bytes.empty(); ++change) {
      const std::size_t offset = below(bytes.size());
      const char byte =
          below(2) == 0 ? static_cast<char>(rng()) : kAlphabet[below(kAlphabet.size())];
      switch (below(4)) {
        case 0: bytes.insert(offset, 1, byte); break;
        case 1: bytes.erase(offset, 1 + below(4)); break;
        case 2: bytes.resize(offset); break;
        default: bytes[offset] = byte;
      }
    }
    test::write_file(path, bytes);
    refusals += read_all(path) ? 0 : 1;
  }
  test::write_file(path, good);
  EXPECT_TRUE(read_all(path));
  EXPECT_GT(refusals, 2000);
  EXPECT_LT(refusals, 3000);
}

}  // namespace
}  // namespace hyperslab::io
