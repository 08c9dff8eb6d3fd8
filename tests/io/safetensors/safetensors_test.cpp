// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "files.hpp"
#include "support/tensors.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Four tensors whose values are all representable in bf16 and f16.
const std::vector<SafetensorsSpec> kSpecs = {
    {"a.weight", {2, 3}}, {"b", {5}}, {"c \"quoted\"", {1, 4}}, {"d", {3}}};

float value_of(std::size_t tensor, Dim element) {
  return 0.25F * static_cast<float>(element) - static_cast<float>(tensor);
}

void fill(std::size_t index, View out) {
  for (Dim i = 0; i < out.numel(); ++i) out.data<float>()[i] = value_of(index, i);
}

void write_model(const std::string& path, DType dtype,
                 std::uint64_t shard_bytes = ModelFolder::kShardBytes) {
  ModelFolder folder(path);
  folder.write_tensors(kSpecs, dtype, fill, shard_bytes);
  folder.commit();
}

void expect_model(const SafetensorsReader& reader) {
  ASSERT_EQ(reader.tensors().size(), kSpecs.size());
  for (std::size_t i = 0; i < kSpecs.size(); ++i) {
    Tensor found(Device::cpu, DType::f32, kSpecs[i].shape);
    reader.read(kSpecs[i].name, found.view());
    for (Dim j = 0; j < found.view().numel(); ++j) {
      EXPECT_EQ(found.view().data<float>()[j], value_of(i, j)) << kSpecs[i].name << " " << j;
    }
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

class Dtypes : public ::testing::TestWithParam<DType> {};

TEST_P(Dtypes, RoundTripOfOneFileAndOfSeveral) {
  const test::TempFolder temp;

  write_model(temp.path() + "/one", GetParam());
  write_model(temp.path() + "/several", GetParam(), 16);

  expect_model(SafetensorsReader(temp.path() + "/one"));
  expect_model(SafetensorsReader(temp.path() + "/one/model.safetensors"));
  expect_model(SafetensorsReader(temp.path() + "/several"));
  EXPECT_FALSE(std::filesystem::exists(temp.path() + "/several/model.safetensors"));
}
INSTANTIATE_TEST_SUITE_P(All, Dtypes, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& one) { return std::string(name_of(one.param)); });

TEST(Safetensors, BytesAreThoseOfTheFormat) {
  const test::TempFolder temp;
  ModelFolder folder(temp.path() + "/m");
  const std::vector<SafetensorsSpec> specs = {{"x", {2}}};

  folder.write_tensors(specs, DType::bf16, [](std::size_t, View out) {
    out.data<float>()[0] = 1.0F;
    out.data<float>()[1] = -2.0F;
  });
  folder.commit();

  const std::string bytes = test::read_file(temp.path() + "/m/model.safetensors");
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0);
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(bytes.substr(8 + header.size(), length - header.size()),
            std::string(length - header.size(), ' '));
  EXPECT_EQ(bytes.substr(8 + length), std::string("\x80\x3f\x00\xc0", 4));
}

TEST(Safetensors, TensorsGoIntoFilesOfALimitedSizeInTheirOrder) {
  const test::TempFolder temp;

  write_model(temp.path() + "/m", DType::f32, 36);  // 24 | 20 + 16 | 12 bytes

  EXPECT_THAT(names_in(temp.path() + "/m"),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  const auto index =
      nlohmann::json::parse(test::read_file(temp.path() + "/m/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 72);
  EXPECT_EQ(index["weight_map"]["a.weight"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["b"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["c \"quoted\""], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["d"], "model-00003-of-00003.safetensors");
}

TEST(Safetensors, ReadsAFileMadeByHand) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/hand.safetensors";
  const std::string header = R"({"h":{"data_offsets":[8,12],"shape":[2],"dtype":"F16"},)"
                             R"("s":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
                             R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
                             R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[12,12]}}   )";
  const std::string data("\x40\x40\x80\xbf\x00\x00\x20\x41\x00\x3e\x00\x80", 12);
  test::write_file(path, test::file_of(header, data));

  const SafetensorsReader reader(path);

  Tensor b(Device::cpu, DType::f32, {1, 2});
  Tensor h(Device::cpu, DType::f32, {2});
  reader.read("b", b.view());
  reader.read("h", h.view());
  EXPECT_THAT(test::to_doubles(b.view()), ElementsAre(3.0, -1.0));
  EXPECT_THAT(test::to_doubles(h.view()), ElementsAre(1.5, 0.0));
  EXPECT_EQ(reader.tensors().at("s").shape.size(), 0);
  EXPECT_EQ(reader.tensors().at("none").bytes, 0);
}

TEST(Safetensors, BlocksOfALargeTensorAreWidenedInTheirOrder) {
  const test::TempFolder temp;
  const std::vector<SafetensorsSpec> specs = {{"large", {601, 1000}}};
  ModelFolder folder(temp.path() + "/m");
  folder.write_tensors(specs, DType::f16, [](std::size_t, View out) {
    for (Dim i = 0; i < out.numel(); ++i) out.data<float>()[i] = static_cast<float>(i % 2039);
  });
  folder.commit();

  Tensor found(Device::cpu, DType::f32, specs[0].shape);
  SafetensorsReader(temp.path() + "/m").read("large", found.view());

  for (Dim i = 0; i < found.view().numel(); ++i) {
    ASSERT_EQ(found.view().data<float>()[i], static_cast<float>(i % 2039)) << i;
  }
}

TEST(Safetensors, OtherDtypesAreListedButNotRead) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  const std::string header = R"({"wide":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                             R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}})";
  test::write_file(path, test::file_of(header, std::string(16, '\0')));
  const SafetensorsReader reader(path);
  Tensor out(Device::cpu, DType::f32, {1});

  for (const auto& [name, dtype] : {std::pair("wide", "F64"), std::pair("ids", "I64")}) {
    const std::string text =
        test::refusal(ExitCode::checkpoint, [&] { reader.read(name, out.view()); });
    EXPECT_THAT(text, HasSubstr(path));
    EXPECT_THAT(text, HasSubstr(name));
    EXPECT_THAT(text, HasSubstr(std::string("is ") + dtype + ", expected F32, F16 or BF16"));
  }
}

TEST(Safetensors, ShapesAndNamesMustBeThoseOfTheFile) {
  const test::TempFolder temp;
  write_model(temp.path() + "/m", DType::f32);
  const SafetensorsReader reader(temp.path() + "/m");
  Tensor out(Device::cpu, DType::f32, {3, 2});

  EXPECT_THAT(test::refusal(ExitCode::checkpoint, [&] { reader.read("a.weight", out.view()); }),
              HasSubstr("\"a.weight\" has shape (2, 3), expected (3, 2)"));
  EXPECT_THAT(test::refusal(ExitCode::checkpoint, [&] { reader.read("e", out.view()); }),
              HasSubstr("there is no tensor \"e\""));
}

TEST(Safetensors, ValuesBeyondHalfAreRefusedButInfinityIsKept) {
  const test::TempFolder temp;
  const std::vector<SafetensorsSpec> specs = {{"big", {1}}};
  const auto write = [&](float value, DType dtype) {
    ModelFolder folder(temp.path() + "/" + std::string(name_of(dtype)));
    folder.write_tensors(specs, dtype,
                         [&](std::size_t, View out) { out.data<float>()[0] = value; });
    folder.commit();
  };

  const std::string text = test::refusal(ExitCode::usage, [&] { write(70000.0F, DType::f16); });

  EXPECT_THAT(text, HasSubstr("big holds 70000"));
  EXPECT_TRUE(names_in(temp.path()).empty());
  EXPECT_NO_THROW(write(70000.0F, DType::bf16));
  EXPECT_NO_THROW(write(std::numeric_limits<float>::infinity(), DType::f16));
}

TEST(Safetensors, ComparesTensorsOfAnyDtypeToTheLastElement) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/m.safetensors";
  constexpr std::size_t kElements = 300'000;  // more than one block
  std::vector<float> wide(kElements, 1.5F);
  std::vector<float> changed = wide;
  changed.back() = 2;
  std::vector<std::uint16_t> narrow(kElements, 0x3FC0);  // 1.5 in bf16
  const json header = {
      {"a", {{"dtype", "F32"}, {"shape", {kElements}}, {"data_offsets", {0, 4 * kElements}}}},
      {"b",
       {{"dtype", "F32"},
        {"shape", {kElements}},
        {"data_offsets", {4 * kElements, 8 * kElements}}}},
      {"c",
       {{"dtype", "BF16"},
        {"shape", {kElements}},
        {"data_offsets", {8 * kElements, 10 * kElements}}}},
      {"d",
       {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {10 * kElements, 10 * kElements + 4}}}}};
  test::write_file(
      path,
      test::file_of(header.dump(), test::bytes_of(wide) + test::bytes_of(changed) +
                                       test::bytes_of(narrow) + test::bytes_of(std::vector{1.5F})));
  const SafetensorsReader reader(path);

  EXPECT_TRUE(reader.are_equal("a", "a"));
  EXPECT_TRUE(reader.are_equal("a", "c"));
  EXPECT_FALSE(reader.are_equal("a", "b"));
  EXPECT_FALSE(reader.are_equal("b", "c"));
  EXPECT_FALSE(reader.are_equal("a", "d"));
  EXPECT_THAT(test::refusal(ExitCode::checkpoint, [&] { (void)reader.are_equal("a", "e"); }),
              HasSubstr("there is no tensor \"e\""));
}

TEST(Safetensors, AFolderAppearsWholeOrNotAtAll) {
  const test::TempFolder temp;
  std::filesystem::create_directory(temp.path() + "/empty");
  {
    ModelFolder folder(temp.path() + "/lost");
    folder.write_text("config.json", "{}");
    folder.write_tensors(kSpecs, DType::f32, fill);
    EXPECT_FALSE(std::filesystem::exists(temp.path() + "/lost"));
  }
  write_model(temp.path() + "/empty/", DType::f32);

  EXPECT_THAT(names_in(temp.path()), ElementsAre("empty"));
  expect_model(SafetensorsReader(temp.path() + "/empty"));
  EXPECT_THAT(
      test::refusal(ExitCode::storage, [&] { const ModelFolder again(temp.path() + "/empty"); }),
      HasSubstr("exists already"));
}

TEST(Safetensors, AFolderCopiesFilesThatAreLongerThanABlock) {
  const test::TempFolder temp;
  std::string bytes(2500000, 'x');
  for (std::size_t i = 0; i < bytes.size(); i += 997) bytes[i] = static_cast<char>(i / 997 % 128);
  test::write_file(temp.path() + "/tokenizer.json", bytes);

  ModelFolder folder(temp.path() + "/model");
  folder.copy_file(temp.path() + "/tokenizer.json", "tokenizer.json");
  folder.commit();

  EXPECT_TRUE(test::read_file(temp.path() + "/model/tokenizer.json") == bytes);
}

TEST(Safetensors, AFolderRefusesToCopyAFileForWhichThereIsNoRoom) {
  const test::TempFolder temp;
  const std::string large = temp.path() + "/tokenizer.json";
  test::write_file(large, "");
  std::filesystem::resize_file(large, std::uintmax_t{1} << 43);  // a hole: it takes no room itself
  ModelFolder folder(temp.path() + "/model");

  EXPECT_THAT(test::refusal(ExitCode::storage, [&] { folder.copy_file(large, "tokenizer.json"); }),
              HasSubstr(large + " needs 8796093022208 bytes and "));
}

}  // namespace
}  // namespace hyperslab::io
