// SPDX-License-Identifier: Apache-2.0
// Values of tokens in HDF5 files and beside .npy files, and pairs of documents.
#include <hdf5.h>

#include <algorithm>
#include <cmath>

#include "files/npy_header.hpp"
#include "hyperslab/io/packing.hpp"
#include "hyperslab/ops/loss.hpp"
#include "io/dataset/files.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;
using Floats = std::vector<float>;

constexpr TokenColumns kAll = {.weight = true,
                               .old_log_probability = true,
                               .advantage = true,
                               .reference_log_probability = true,
                               .teachers = 2};

struct Set {
  std::string name;
  hid_t stored;
  hid_t given;
  std::vector<hsize_t> shape;
  const void* data;
};

std::string write_sets(const std::string& path, const std::vector<Set>& sets) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  for (const Set& set : sets) {
    const hid_t space =
        H5Screate_simple(static_cast<int>(set.shape.size()), set.shape.data(), nullptr);
    const hid_t out = H5Dcreate2(file, set.name.c_str(), set.stored, space, H5P_DEFAULT,
                                 H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(out, set.given, H5S_ALL, H5S_ALL, H5P_DEFAULT, set.data);
    H5Dclose(out), H5Sclose(space);
  }
  H5Fclose(file);
  return path;
}

class Columns : public FilesTest {
 protected:
  static constexpr std::size_t kTokens = 12;
  Ids ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::array<Floats, 4> values;
  Ids teacher_ids;
  Floats teacher_values;
  std::vector<std::int64_t> documents = {0, 3, 5, 9};

  void SetUp() override {
    FilesTest::SetUp();
    for (std::size_t column = 0; column < values.size(); ++column) {
      for (std::size_t t = 0; t < kTokens; ++t) {
        values[column].push_back(static_cast<float>(column + 1) + 0.125F * static_cast<float>(t));
      }
    }
    for (std::size_t t = 0; t < kTokens; ++t) {
      for (int j = 0; j < 3; ++j) {  // one more than is read
        teacher_ids.push_back(static_cast<std::int32_t>(t + 20) + j);
        teacher_values.push_back(-0.5F * static_cast<float>(j) - static_cast<float>(t));
      }
    }
  }
  [[nodiscard]] std::string hdf5(const std::string& without = "") const {
    std::vector<Set> sets = {
        {"tokens", H5T_STD_U16LE, H5T_NATIVE_INT32, {kTokens}, ids.data()},
        {"documents", H5T_STD_I64LE, H5T_NATIVE_INT64, {documents.size()}, documents.data()}};
    for (const TokenColumn column : kTokenColumns) {
      sets.push_back({std::string(dataset_of(column)),
                      H5T_IEEE_F32LE,
                      H5T_NATIVE_FLOAT,
                      {kTokens},
                      values[static_cast<std::size_t>(column)].data()});
    }
    sets.push_back(
        {"teacher_ids", H5T_STD_I32LE, H5T_NATIVE_INT32, {kTokens, 3}, teacher_ids.data()});
    sets.push_back({"teacher_log_probabilities",
                    H5T_IEEE_F32LE,
                    H5T_NATIVE_FLOAT,
                    {kTokens, 3},
                    teacher_values.data()});
    std::erase_if(sets, [&](const Set& set) { return set.name == without; });
    return write_sets(path("values.h5"), sets);
  }
  [[nodiscard]] std::string beside() {
    const auto write_array = [&](const std::string& name, const char* descr,
                                 const std::string& shape, const auto& elements) {
      std::string bytes = io::npy_header(descr, shape);
      bytes.append(reinterpret_cast<const char*>(elements.data()),
                   elements.size() * sizeof(elements[0]));
      return this->write(name, bytes);
    };
    for (const TokenColumn column : kTokenColumns) {
      write_array("beside." + std::string(dataset_of(column)) + ".npy", "<f4", "(12,)",
                  values[static_cast<std::size_t>(column)]);
    }
    write_array("beside.teacher_ids.npy", "<i4", "(12, 3)", teacher_ids);
    write_array("beside.teacher_log_probabilities.npy", "<f4", "(12, 3)", teacher_values);
    return write_array("beside.npy", "<i4", "(12,)", ids);
  }
  static std::unique_ptr<io::TokenSource> open(const std::string& file,
                                               const TokenColumns& columns = kAll,
                                               bool all = true) {
    return io::open_tokens({file}, io::RawIds::uint16, 300, 1, false, false, {columns, all});
  }
  void refuse(const std::string& file, std::initializer_list<std::string> parts) {
    expect_error(ExitCode::data, parts, [&] {
      const auto source = open(file);
      Floats out(kTokens * 6);
      Ids taught(kTokens * 2);
      source->read_values(0, out);
      source->read_teacher_ids(0, taught);
    });
  }
};

TEST_F(Columns, AreReadFromEveryFormat) {
  for (const std::string& file : {hdf5(), beside()}) {
    const auto source = open(file);
    EXPECT_EQ(source->columns(), kAll);
    Floats out(3 * 6);
    source->read_values(4, out);
    for (std::size_t t = 0; t < 3; ++t) {
      for (std::size_t column = 0; column < 4; ++column) {
        EXPECT_EQ(out[t * 6 + column], values[column][4 + t]) << file;
      }
      for (std::size_t j = 0; j < 2; ++j) {
        EXPECT_EQ(out[t * 6 + 4 + j], teacher_values[(4 + t) * 3 + j]) << file;
      }
    }
    Ids taught(3 * 2);
    source->read_teacher_ids(4, taught);
    EXPECT_EQ(taught, (Ids{24, 25, 25, 26, 26, 27}));
  }
}

TEST_F(Columns, APatternTakesNoArrayOfValuesForTokens) {
  (void)beside();
  EXPECT_EQ(open(path("*.npy"))->size(), static_cast<std::int64_t>(kTokens));
}

TEST_F(Columns, AnArrayBesideServesAnHdf5FileWithoutTheDataset) {
  const std::string file = hdf5("weights");
  std::string bytes = io::npy_header("<f4", "(12,)");
  bytes.append(reinterpret_cast<const char*>(values[2].data()), kTokens * sizeof(float));
  write("values.weights.npy", bytes);
  Floats out(1);
  open(file, {.weight = true})->read_values(3, out);
  EXPECT_EQ(out[0], values[2][3]);
}

TEST_F(Columns, SomeAloneStandInTheOrderOfTheirNames) {
  const auto source =
      open(hdf5("advantages"), {.old_log_probability = true, .reference_log_probability = true});
  Floats out(2);
  source->read_values(11, out);
  EXPECT_EQ(out, (Floats{values[1][11], values[3][11]}));
}

TEST_F(Columns, AreMissedByName) {
  for (const char* name :
       {"weights", "old_log_probabilities", "advantages", "reference_log_probabilities",
        "teacher_ids", "teacher_log_probabilities"}) {
    refuse(hdf5(name), {"values.h5", name});
  }
  (void)open(hdf5("advantages"), kAll, false);  // validation needs the weights alone
  expect_error(ExitCode::data, {"weights"}, [&] { (void)open(hdf5("weights"), kAll, false); });
  expect_error(ExitCode::data, {"synthetic", "data.token_weights"},
               [&] { (void)open("synthetic"); });
  expect_error(ExitCode::data, {"raw.bin", "weights"}, [&] {
    (void)open(write("raw.bin", std::string("\1\0\2\0\3\0", 6)), {.weight = true});
  });
}

TEST_F(Columns, ThatValidationDoesNotUseAreNotRead) {
  values[2][7] = std::nanf("");
  const auto source = open(hdf5(), kAll, false);
  Floats out(kTokens * 6);
  source->read_values(0, out);
  EXPECT_EQ(out[7 * 6], values[0][7]);
  EXPECT_EQ(out[7 * 6 + 2], 1);
}

TEST_F(Columns, PairsDoNotGoFromOneFileIntoTheNext) {
  const auto source = io::open_tokens({hdf5(), beside()}, io::RawIds::uint16, 300, 1);
  expect_error(ExitCode::data,
               {"an even number of documents in every file", "found 3 before token 12"}, [&] {
                 const std::vector<std::int64_t> starts = {0, 3, 5, 12};
                 const io::PackedSamples samples(*source, starts, io::Packing::best_fit, 20, 1, {},
                                                 io::PackedSamples::PackedAs::pairs);
               });
}

TEST_F(Columns, ThatAreDamagedAreRefusedWithTheirPlace) {
  values[0][5] = -1;
  refuse(hdf5(), {"weights", "token 5", "-1"});
  values[0][5] = 1;
  values[2][7] = std::nanf("");
  refuse(beside(), {"advantages", "token 7"});
  values[2][7] = 1;
  teacher_ids[4] = 300;
  refuse(hdf5(), {"teacher_ids", "token 1", "300"});
  teacher_ids[4] = teacher_ids[3];
  refuse(hdf5(), {"teacher_ids", "token 1", "twice"});
  teacher_ids[4] = 22;
  values[1].pop_back();
  refuse(beside(), {"beside.old_log_probabilities.npy"});
}

TEST_F(Columns, AnotherTypeIsRefused) {
  const std::vector<double> wide(kTokens, 1.0);
  const auto file = write_sets(
      path("wide.h5"), {{"tokens", H5T_STD_U16LE, H5T_NATIVE_INT32, {kTokens}, ids.data()},
                        {"weights", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {kTokens}, wide.data()}});
  expect_error(ExitCode::data, {"wide.h5", "weights", "float32"},
               [&] { (void)open(file, {.weight = true}); });
  const auto big = write_sets(
      path("big.h5"), {{"tokens", H5T_STD_U16LE, H5T_NATIVE_INT32, {kTokens}, ids.data()},
                       {"weights", H5T_IEEE_F32BE, H5T_NATIVE_DOUBLE, {kTokens}, wide.data()}});
  expect_error(ExitCode::data, {"big.h5", "weights", "little-endian"},
               [&] { (void)open(big, {.weight = true}); });
}

TEST_F(Columns, AChangedValueShowsInTheFingerprint) {
  const std::uint64_t before = open(hdf5())->fingerprint();
  values[2][3] += 1;
  EXPECT_NE(open(hdf5())->fingerprint(), before);
}

std::vector<std::int64_t> ids_of(CView view) {
  const auto ids = view.span<std::int32_t>();
  return {ids.begin(), ids.end()};
}

/// Samples with the batch that they are read into.
struct Read {
  Tensor tokens, targets, first_keys, values, taught, pairs;
  Read(const io::Samples& samples, Dim B, Dim T, Dim columns, Dim teachers)
      : tokens(Device::cpu, DType::i32, {B, T}),
        targets(Device::cpu, DType::i32, {B, T}),
        first_keys(Device::cpu, DType::i32, {B, T}),
        values(Device::cpu, DType::f32, {B, T, columns}),
        taught(Device::cpu, DType::i32, {B, T, std::max<Dim>(1, teachers)}),
        pairs(Device::cpu, DType::i32, {B, T}) {
    Batch batch;
    batch.tokens = tokens.view();
    batch.targets = targets.view();
    batch.first_keys = first_keys.view();
    batch.token_values = values.view();
    if (teachers > 0) batch.teacher_ids = taught.view();
    batch.pairs = pairs.view();
    samples.read(0, B - 1, batch);  // the last row does not count
  }
};

TEST_F(Columns, SamplesHaveTheValuesOfTheirTargets) {
  const auto source = open(hdf5());
  const io::TokenSamples samples(*source, io::Sampling::blocks, 4, 1, false);
  const Read read(samples, 3, 4, 6, 2);
  const auto* value = read.values.view().data<float>();
  for (std::size_t t = 0; t < 8; ++t) {
    EXPECT_EQ(value[t * 6], values[0][t + 1]);
    EXPECT_EQ(value[t * 6 + 3], values[3][t + 1]);
    EXPECT_EQ(read.taught.view().data<std::int32_t>()[t * 2], teacher_ids[(t + 1) * 3]);
  }
  EXPECT_EQ(value[8 * 6], 1) << "of a row that does not count";
  double sum = 0;
  for (std::size_t t = 1; t <= 4; ++t) sum += static_cast<double>(values[0][t]);
  EXPECT_TRUE(samples.has_weights());
  EXPECT_EQ(samples.weights(0), sum);
  io::Loader loader(samples, 2, 0, 1);
  EXPECT_EQ(loader.weights(1), samples.weights(0) + samples.weights(1));
  EXPECT_EQ(loader.counted_tokens(1), 8);
}

TEST_F(Columns, PackedSamplesHaveTheValuesOfTheirTargets) {
  const auto source = open(hdf5(), {.weight = true});
  const io::PackedSamples samples(*source, documents, io::Packing::best_fit, 6, 1,
                                  {.predicts_starts = false});
  for (std::int64_t g = 0; g < samples.size(); ++g) {
    double sum = 0;
    for (const auto& piece : samples.pieces(g)) {
      for (std::int64_t t = piece.begin + 1; t < piece.end; ++t) {
        sum += static_cast<double>(values[0][static_cast<std::size_t>(t)]);
      }
    }
    EXPECT_EQ(samples.weights(g), sum);
  }
}

TEST_F(Columns, PairsStayTogetherAndApart) {
  const auto source = open(hdf5(), {.reference_log_probability = true});
  const io::PackedSamples samples(*source, documents, io::Packing::best_fit, 13, 1,
                                  {.predicts_starts = false}, io::PackedSamples::PackedAs::pairs);
  ASSERT_EQ(samples.size(), 1);
  EXPECT_EQ(samples.weights(0), 2);
  const Read read(samples, 2, 13, 1, 0);
  // The longer pair is placed first: documents [5, 9) and [9, 12), then [0, 3) and [3, 5).
  EXPECT_EQ(ids_of(read.tokens.view().slice(0, 1)),
            (std::vector<std::int64_t>{6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 0}));
  constexpr std::int64_t kNone = ops::kIgnoredTarget;
  EXPECT_EQ(
      ids_of(read.targets.view().slice(0, 1)),
      (std::vector<std::int64_t>{7, 8, 9, kNone, 11, 12, kNone, 2, 3, kNone, 5, kNone, kNone}));
  EXPECT_EQ(ids_of(read.first_keys.view().slice(0, 1)),
            (std::vector<std::int64_t>{0, 0, 0, 0, 4, 4, 4, 7, 7, 7, 10, 10, 12}));
  EXPECT_EQ(ids_of(read.pairs.view().slice(0, 1)),
            (std::vector<std::int64_t>{0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, kNoPair}));
  EXPECT_EQ(ids_of(read.pairs.view().slice(1, 1)), std::vector<std::int64_t>(13, kNoPair));
  EXPECT_EQ(read.values.view().data<float>()[0], values[3][6]);
}

TEST_F(Columns, PairsThatAreNoneOrTooLongAreRefused) {
  const auto source = open(hdf5(), {.reference_log_probability = true});
  const auto pack = [&](std::vector<std::int64_t> starts, Dim T) {
    const io::PackedSamples samples(*source, starts, io::Packing::best_fit, T, 1,
                                    {.predicts_starts = false}, io::PackedSamples::PackedAs::pairs);
  };
  expect_error(ExitCode::data, {"pairs", "found an odd number, 3"}, [&] { pack({0, 3, 5}, 13); });
  expect_error(ExitCode::data, {"at most model.context 6", "found 7 in pair 1", "token 5"},
               [&] { pack(documents, 6); });
}

}  // namespace
}  // namespace hyperslab::test
