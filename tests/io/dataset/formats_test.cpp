// SPDX-License-Identifier: Apache-2.0
// Every format is read as it was written, and every header that lies is refused.
#include <hdf5.h>

#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;

class Formats : public FilesTest {
 protected:
  Ids open(const std::string& file, io::RawIds raw = io::RawIds::uint16, std::int64_t V = 100000) {
    return read_all(*io::open_tokens({file}, raw, V, 1));
  }
  void refuse(const std::string& file, std::initializer_list<std::string> parts,
              io::RawIds raw = io::RawIds::uint16) {
    expect_error(ExitCode::data, {file}, [&] { open(file, raw); });
    expect_error(ExitCode::data, parts, [&] { open(file, raw); });
  }

  /// An HDF5 file with one dataset of `values`, stored as `type`.
  std::string hdf5(const std::string& name, const char* dataset, hid_t type, const Ids& values,
                   std::vector<hsize_t> shape) {
    const hid_t file = H5Fcreate(path(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    const hid_t set = H5Dcreate2(file, dataset, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(set), H5Pclose(properties), H5Sclose(space), H5Fclose(file);
    return path(name);
  }
};

TEST_F(Formats, ReadsRawUint16AndUint32) {
  const auto narrow = write("a.bin", bytes_of<std::uint16_t>({1, 2, 65535}));
  const auto wide = write("b.bin", bytes_of<std::uint32_t>({1, 70000}));

  EXPECT_EQ(open(narrow), (Ids{1, 2, 65535}));
  EXPECT_EQ(open(wide, io::RawIds::uint32), (Ids{1, 70000}));
  refuse(write("odd.bin", "abc"), {"multiple of 2 bytes", "3 bytes"});
  refuse(narrow, {"multiple of 4 bytes", "6 bytes"}, io::RawIds::uint32);
}

TEST_F(Formats, RefusesRawFilesOfWiderIdsThanTheDeckSays) {
  std::vector<std::uint32_t> wide;
  std::vector<std::uint16_t> narrow;
  std::vector<std::int64_t> widest;
  for (std::uint32_t i = 0; i < 200; ++i) {
    wide.push_back((i * 7919 + 11) % 128000);
    narrow.push_back(static_cast<std::uint16_t>((i * 7919 + 11) % 50000));
    widest.push_back(i * 7919 % 50000);
  }
  const auto file = write("wide.bin", bytes_of(wide));

  refuse(file,
         {"uint16 ids (data.dtype)", "every second one below 16", "set data.dtype to uint32"});
  EXPECT_EQ(open(file, io::RawIds::uint32, 128000).size(), 200U);
  EXPECT_EQ(open(write("narrow.bin", bytes_of(narrow))).size(), 200U);
  refuse(write("widest.bin", bytes_of(widest)), {"as int64 ids look when they are read as uint32"},
         io::RawIds::uint32);
  EXPECT_EQ(open(write("zeros.bin", std::string(4096, '\0'))).size(), 2048U);
  EXPECT_EQ(open(write("few.bin", bytes_of<std::uint16_t>({300, 0, 400, 1}))),
            (Ids{300, 0, 400, 1}));
}

TEST_F(Formats, ReadsBothHeadersOfLlmc) {
  const auto narrow = write("a.bin", llmc(20240520, 1, 3, {7, 8, 65535}));
  const auto wide = write("b.bin", llmc(20240801, 7, 2, {1, 1, 5, 0}));

  EXPECT_EQ(open(narrow), (Ids{7, 8, 65535}));
  EXPECT_EQ(open(wide), (Ids{65537, 5}));
}

TEST_F(Formats, RefusesHeadersOfLlmcThatLie) {
  refuse(write("short.bin", llmc(20240520, 1, 3, {7, 8})), {"1030 bytes", "1028 bytes"});
  refuse(write("long.bin", llmc(20240520, 1, 3, {7, 8, 9, 10})), {"1030 bytes", "1032 bytes"});
  refuse(write("negative.bin", llmc(20240520, 1, -1, {})), {"-1 tokens", "1024 bytes"});
  refuse(write("cut.bin", llmc(20240520, 1, 3, {}).substr(0, 100)), {"1030 bytes", "100 bytes"});
  refuse(write("zero.bin", llmc(20240520, 1, 0, {})), {"0 tokens"});
  refuse(write("version.bin", llmc(20240520, 2, 1, {7})), {"version 1", "version 2"});
  refuse(write("magic.bin", llmc(1234, 1, 2, {7, 8})), {"20240520", "20240801", "1234"});
  refuse(write("model.bin", llmc(20240326, 3, 1024, {7, 8})), {"20240520", "20240326"});
  refuse(write("swapped.bin", llmc(__builtin_bswap32(20240520), 1, 1, {7})), {"big-endian"});
}

TEST_F(Formats, ReadsNpyOfEveryType) {
  const std::string dict = "', 'fortran_order': False, 'shape': (3,), }";
  const auto u2 =
      write("u2.npy", npy(1, "{'descr': '<u2" + dict, bytes_of<std::uint16_t>({1, 2, 65535})));
  const auto u4 =
      write("u4.npy", npy(2, "{'descr': '<u4" + dict, bytes_of<std::uint32_t>({1, 2, 70000})));
  const auto i4 =
      write("i4.npy", npy(1, "{\"descr\": '<i4" + dict, bytes_of<std::int32_t>({1, 2, 70000})));
  const auto i8 = write("i8.npy", npy(3, "{'descr':'<i8','fortran_order':False,'shape':(3,)}",
                                      bytes_of<std::int64_t>({1, 2, 70000})));

  EXPECT_EQ(open(u2), (Ids{1, 2, 65535}));
  EXPECT_EQ(open(u4), (Ids{1, 2, 70000}));
  EXPECT_EQ(open(i4), (Ids{1, 2, 70000}));
  EXPECT_EQ(open(i8), (Ids{1, 2, 70000}));
}

TEST_F(Formats, RefusesNpyThatIsNotTokens) {
  const auto make = [&](const std::string& name, const std::string& descr, const std::string& order,
                        const std::string& shape, std::size_t bytes) {
    return write(
        name,
        npy(1, "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }",
            std::string(bytes, '\0')));
  };
  refuse(make("f.npy", "'<f4'", "False", "(2,)", 8), {"<u2", "<f4"});
  refuse(make("big.npy", "'>u2'", "False", "(2,)", 4), {"little-endian", ">u2 (big-endian)"});
  refuse(make("struct.npy", "[('a', '<u2')]", "False", "(2,)", 4), {"structured"});
  refuse(make("2d.npy", "'<u2'", "False", "(2, 3)", 12), {"1-D", "(2, 3)"});
  refuse(make("0d.npy", "'<u2'", "False", "()", 2), {"1-D", "()"});
  refuse(make("fortran.npy", "'<u2'", "True", "(2,)", 4), {"Fortran order"});
  refuse(make("short.npy", "'<u2'", "False", "(3,)", 4), {"3 tokens of 2 bytes", "4 bytes"});
  refuse(make("long.npy", "'<u2'", "False", "(1,)", 4), {"1 tokens of 2 bytes", "4 bytes"});
  refuse(make("none.npy", "'<u2'", "False", "(0,)", 0), {"0 tokens"});
  refuse(make("overflow.npy", "'<i8'", "False", "(2305843009213693953,)", 8),
         {"2305843009213693953"});
}

TEST_F(Formats, RefusesNpyHeadersThatAreDamaged) {
  const std::string good =
      npy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }", "ab");

  refuse(write("magic.npy", "PK" + good.substr(2)), {"magic number"});
  refuse(write("version.npy", good.substr(0, 6) + "\x09" + good.substr(7)), {"version 9"});
  refuse(write("cut.npy", good.substr(0, 30)), {"header of", "30 bytes"});
  refuse(write("tiny.npy", good.substr(0, 8)), {"header"});
  refuse(write("key.npy", npy(1, "{'descr': '<u2', 'shape': (1,), }", "ab")), {"fortran_order"});
  for (std::size_t bytes = 1; bytes < good.size(); ++bytes) {
    const auto file = write("part.npy", good.substr(0, bytes));
    EXPECT_THROW(open(file), Error) << bytes;
  }
}

TEST_F(Formats, ReadsHdf5InPlaceOrThroughConversion) {
  const Ids values = {1, 2, 300};

  EXPECT_EQ(open(hdf5("a.h5", "tokens", H5T_STD_U16LE, values, {3})), values);
  EXPECT_EQ(open(hdf5("b.h5", "tokens", H5T_STD_I64LE, values, {3})), values);
  EXPECT_EQ(open(hdf5("c.h5", "tokens", H5T_STD_U16BE, values, {3})), values);
  EXPECT_EQ(open(hdf5("d.hdf5", "tokens", H5T_STD_I32BE, values, {3})), values);
  EXPECT_EQ(open(hdf5("e.h5", "tokens", H5T_STD_U32LE, values, {3})), values);
  EXPECT_EQ(open(hdf5("f.data", "tokens", H5T_STD_I64BE, values, {3})), values);
}

TEST_F(Formats, RefusesHdf5ThatIsTooLargeForMemory) {
  const hid_t file = H5Fcreate(path("vast.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t extent = 1ULL << 61;
  const hid_t space = H5Screate_simple(1, &extent, nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  const hid_t set =
      H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  ASSERT_GE(set, 0);
  H5Dclose(set), H5Pclose(properties), H5Sclose(space), H5Fclose(file);

  refuse(path("vast.h5"), {"2305843009213693952 tokens", "ids that fit in memory"});
}

/// Files whose dataset `tokens` is somewhere else, or nowhere.
class Hdf5Elsewhere : public Formats {
 protected:
  Hdf5Elsewhere() {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    hdf5("other.h5", "tokens", H5T_STD_U16LE, Ids(1000, 5), {1000});
  }
  /// Lets `make(file, space, properties)` add the dataset.
  template <class Make>
  std::string with(const std::string& name, Make make) {
    const hid_t file = H5Fcreate(path(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t extent = 1000;
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    make(file, space, properties);
    H5Pclose(properties), H5Sclose(space), H5Fclose(file);
    return path(name);
  }
  static hid_t create(hid_t file, hid_t space, hid_t properties, const char* name = "tokens") {
    return H5Dcreate2(file, name, H5T_STD_U16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  }
};

TEST_F(Hdf5Elsewhere, LinksAreRefused) {
  refuse(with("external.h5",
              [&](hid_t file, hid_t, hid_t) {
                H5Lcreate_external(path("other.h5").c_str(), "tokens", file, "tokens", H5P_DEFAULT,
                                   H5P_DEFAULT);
              }),
         {"the dataset tokens itself", "an external link to another file"});
  refuse(with("soft.h5",
              [&](hid_t file, hid_t space, hid_t properties) {
                H5Dclose(create(file, space, properties, "there"));
                H5Lcreate_soft("/there", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
              }),
         {"a soft link"});
}

TEST_F(Hdf5Elsewhere, StorageInOtherFilesIsRefused) {
  refuse(with("virtual.h5",
              [&](hid_t file, hid_t space, hid_t properties) {
                H5Pset_virtual(properties, space, path("gone.h5").c_str(), "tokens", space);
                H5Dclose(create(file, space, properties));
              }),
         {"elements in this file", "a virtual dataset"});
  refuse(with("raw.h5",
              [&](hid_t file, hid_t space, hid_t properties) {
                H5Pset_external(properties, path("other.h5").c_str(), 0, 2000);
                H5Dclose(create(file, space, properties));
              }),
         {"elements in this file", "external raw storage"});
}

TEST_F(Hdf5Elsewhere, ElementsThatWereNeverWrittenAreRefused) {
  refuse(with("never.h5", [](hid_t file, hid_t space,
                             hid_t properties) { H5Dclose(create(file, space, properties)); }),
         {"1000 elements in the dataset tokens", "never written"});
}

TEST_F(Formats, RefusesHdf5WithoutTokens) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const auto good = hdf5("good.h5", "tokens", H5T_STD_U16LE, Ids(5000, 1), {5000});
  const std::string bytes = content("good.h5");

  refuse(hdf5("name.h5", "token", H5T_STD_U16LE, {1}, {1}), {"dataset named tokens"});
  refuse(hdf5("float.h5", "tokens", H5T_IEEE_F32LE, {1}, {1}), {"integers"});
  refuse(hdf5("2d.h5", "tokens", H5T_STD_U16LE, {1, 2}, {1, 2}), {"1-D", "2 dimensions"});
  refuse(write("cut.h5", bytes.substr(0, bytes.size() - 100)), {"HDF5"});
  refuse(write("text.h5", "once upon a time"), {"HDF5"});
}

}  // namespace
}  // namespace hyperslab::test
