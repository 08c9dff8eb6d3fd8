// SPDX-License-Identifier: Apache-2.0
// What HDF5's library writes in every form, the reader of token files reads; what it does not read
// it refuses by name, and no damage leads it astray.
#include <hdf5.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "hdf5/handles.hpp"
#include "hdf5/source.hpp"
#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using io::hdf5::Handle;
using Ids = std::vector<std::int32_t>;

Ids some_ids(std::size_t count) {
  Ids ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>((i * 7919) % 50000);
  return ids;
}

/// How a dataset `tokens` is stored.
struct Form {
  std::string name{};
  hid_t type = H5T_STD_U16LE;
  std::size_t count = 1000;
  std::function<void(hid_t)> set = [](hid_t) {};  ///< the properties of the dataset
};

void compact(hid_t properties) { H5Pset_layout(properties, H5D_COMPACT); }

std::function<void(hid_t)> chunks(hsize_t elements, const std::string& filters = "") {
  return [elements, filters](hid_t properties) {
    H5Pset_chunk(properties, 1, &elements);
    for (const char filter : filters) {
      if (filter == 's') H5Pset_shuffle(properties);
      if (filter == 'f') H5Pset_fletcher32(properties);
      if (filter == 'd') H5Pset_deflate(properties, 6);
    }
  };
}

class Hdf5Reader : public FilesTest, public testing::WithParamInterface<bool> {
 protected:
  Hdf5Reader() { io::hdf5::be_quiet(); }
  [[nodiscard]] Handle create(const std::string& name) const {
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    if (is_newest()) H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    return {H5Fcreate(path(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose};
  }
  [[nodiscard]] virtual bool is_newest() const { return GetParam(); }

  static Handle add(const Handle& file, const Form& form, const Ids& ids,
                    const char* name = "tokens") {
    const auto extent = static_cast<hsize_t>(form.count);
    const Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    const Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    form.set(properties.get());
    Handle set(H5Dcreate2(file.get(), name, form.type, space.get(), H5P_DEFAULT, properties.get(),
                          H5P_DEFAULT),
               H5Dclose);
    EXPECT_TRUE(set) << io::hdf5::last_error();
    EXPECT_GE(H5Dwrite(set.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids.data()), 0);
    return set;
  }
  [[nodiscard]] Ids open(const std::string& name) const {
    return read_all(*io::open_tokens({path(name)}, io::RawIds::uint16, 50000, 1));
  }
  void expect_read(const Form& form) {
    SCOPED_TRACE(form.name);
    const Ids ids = some_ids(form.count);
    { add(create("a.h5"), form, ids); }
    EXPECT_EQ(open("a.h5"), ids);
  }
  void expect_refused(const std::string& name, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(name);
    expect_error(ExitCode::data, parts, [&] { (void)open(name); });
  }
};

TEST_P(Hdf5Reader, ReadsEveryWayToStoreElements) {
  expect_read({.name = "contiguous"});
  expect_read({.name = "compact", .set = compact});
}

/// The remedy is tried, with the tool of HDF5.
TEST_P(Hdf5Reader, RefusesChunksWithTheCommandThatMendsThem) {
  const Ids ids = some_ids(1000);
  for (const char* filters : {"", "d", "sfd"}) {
    {
      add(create("a.h5"), {.set = chunks(300, filters)}, ids);
    }
    expect_refused("a.h5", {"a dataset tokens in one piece", *filters == 0 ? "chunks" : "filtered",
                            "h5repack -l CONTI -f NONE FILE NEW.h5"});
    const std::string repack = "h5repack -l CONTI -f NONE " + path("a.h5") + " " + path("b.h5");
    ASSERT_EQ(std::system(repack.c_str()), 0);
    EXPECT_EQ(open("b.h5"), ids);
    std::filesystem::remove(path("b.h5"));
  }
}

TEST_P(Hdf5Reader, ReadsIntegersOfEverySizeSignAndOrder) {
  const auto expect = [&](const char* name, hid_t type, std::int32_t most) {
    SCOPED_TRACE(name);
    for (const auto& set : {std::function<void(hid_t)>([](hid_t) {}), {compact}}) {
      const Ids ids = {0, 1, 2, most - 1, most, 5, 6};
      { add(create("a.h5"), {.name = name, .type = type, .count = 7, .set = set}, ids); }
      EXPECT_EQ(open("a.h5"), ids);
    }
  };
  expect("u8", H5T_STD_U8LE, 255);
  expect("i8", H5T_STD_I8LE, 127);
  expect("u16", H5T_STD_U16LE, 49999);
  expect("i16", H5T_STD_I16LE, 32767);
  expect("u32", H5T_STD_U32LE, 49999);
  expect("i32", H5T_STD_I32LE, 49999);
  expect("u64", H5T_STD_U64LE, 49999);
  expect("i64", H5T_STD_I64LE, 49999);
  expect("u16 big", H5T_STD_U16BE, 49999);
  expect("i16 big", H5T_STD_I16BE, 32767);
  expect("u32 big", H5T_STD_U32BE, 49999);
  expect("i32 big", H5T_STD_I32BE, 49999);
  expect("u64 big", H5T_STD_U64BE, 49999);
  expect("i64 big", H5T_STD_I64BE, 49999);
}

TEST_P(Hdf5Reader, RefusesNegativeIdsOfEverySize) {
  for (const hid_t type : {H5T_STD_I8LE, H5T_STD_I16BE, H5T_STD_I32BE, H5T_STD_I64BE}) {
    {
      add(create("a.h5"), {.type = type, .count = 4}, {1, 2, -3, 4});
    }
    expect_refused("a.h5", {"-3"});
  }
}

TEST_P(Hdf5Reader, FindsTokensAmongOtherObjects) {
  const Ids ids = some_ids(100);
  {
    const Handle file = create("few.h5");
    add(file, {.count = 100}, some_ids(100), "another");
    const Handle set = add(file, {.count = 100}, ids);
    const Handle scalar(H5Screate(H5S_SCALAR), H5Sclose);
    for (int i = 0; i < 40; ++i) {  // more than the first block of a header holds
      const std::string name = "attribute_" + std::to_string(i);
      const Handle attribute(H5Acreate2(set.get(), name.c_str(), H5T_STD_I64LE, scalar.get(),
                                        H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
      H5Awrite(attribute.get(), H5T_NATIVE_INT, &i);
    }
  }
  EXPECT_EQ(open("few.h5"), ids);
  {
    const Handle file = create("many.h5");
    for (int i = 0; i < 3000; ++i) {
      const std::string name = (i % 2 == 0 ? "a" : "z") + std::to_string(i);
      const Handle group(
          H5Gcreate2(file.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    }
    add(file, {.count = 100}, ids);
  }
  if (is_newest()) {
    expect_refused("many.h5", {"a root group of few datasets"});
  } else {
    EXPECT_EQ(open("many.h5"), ids);
  }
}

TEST_P(Hdf5Reader, RefusesByNameWhatItDoesNotRead) {
  const Ids ids = some_ids(1000);
  {
    const Handle file = create("type.h5");
    const Handle type(H5Tcopy(H5T_STD_U16LE), H5Tclose);
    H5Tcommit2(file.get(), "type", type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    add(file, {.type = type.get()}, ids);
  }
  expect_refused("type.h5", {"a committed type"});
  {
    const Handle type(H5Tcopy(H5T_STD_U32LE), H5Tclose);
    H5Tset_precision(type.get(), 20);
    add(create("bits.h5"), {.type = type.get()}, ids);
  }
  expect_refused("bits.h5", {"integers in the dataset tokens"});
  {
    const Handle file = create("group.h5");
    const Handle group(H5Gcreate2(file.get(), "tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       H5Gclose);
  }
  expect_refused("group.h5", {"the dataset tokens without the shape"});
}

TEST_P(Hdf5Reader, NamesVersionsOfHdf5) {
  if (is_newest()) GTEST_SKIP() << "a changed byte breaks the checksum of its header";
  { add(create("a.h5"), {.set = chunks(100, "d")}, some_ids(1000)); }
  std::string bytes = content("a.h5");
  const std::size_t layout = bytes.find("\x03\x02\x02");  // version, chunked, dimensions + 1
  ASSERT_NE(layout, std::string::npos);
  ASSERT_EQ(bytes.find("\x03\x02\x02", layout + 1), std::string::npos);
  bytes[layout] = 5;
  write("b.h5", bytes);
  expect_refused("b.h5", {"filtered chunks", "NEW.h5 of HDF5 2.0 or newer"});
  bytes[layout] = 2;
  write("b.h5", bytes);
  expect_refused("b.h5", {"HDF5 1.6.3", "a layout of version 2"});
}

/// Every byte of the structure, and many of the elements, changed in several ways: a file is read
/// or refused in one line.
TEST_P(Hdf5Reader, NoChangedByteLeadsAstray) {
  const Ids ids = some_ids(200);
  { add(create("a.h5"), {.count = 200}, ids); }
  const std::string good = content("a.h5");
  std::size_t refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    constexpr std::array kChanges = {0x01, 0x80, 0xFF};
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ kChanges[i % kChanges.size()]);
    write("b.h5", bytes);
    try {
      (void)open("b.h5");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, std::size_t{200});
  for (std::size_t bytes = 1; bytes < good.size(); bytes += 7) {
    write("b.h5", good.substr(0, bytes));
    EXPECT_THROW((void)open("b.h5"), Error) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(OldestAndNewestFormat, Hdf5Reader, testing::Bool());

/// Values of Jenkins' own test driver.
TEST(Lookup3, IsThatOfItsAuthor) {
  const auto hash = [](std::string_view text) {
    return io::hdf5::lookup3(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(hash(""), 0xDEADBEEFU);
  EXPECT_EQ(hash("Four score and seven years ago"), 0x17770551U);
}

}  // namespace
}  // namespace hyperslab::test
