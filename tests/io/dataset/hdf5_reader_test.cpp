// SPDX-License-Identifier: Apache-2.0
// What HDF5's library writes in every form, the reader of token files reads; what it does not read
// it refuses by name, and no damage leads it astray.
#include <hdf5.h>

#include <array>
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
  bool grows = false;                             ///< without a largest size
  hsize_t most = 0;                               ///< or with this one; 0: count
};

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
    const hsize_t most = form.grows ? H5S_UNLIMITED : form.most > 0 ? form.most : extent;
    const Handle space(H5Screate_simple(1, &extent, &most), H5Sclose);
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
  const auto compact = [](hid_t p) { H5Pset_layout(p, H5D_COMPACT); };
  const auto early = [](hid_t p) {
    chunks(100)(p);
    H5Pset_alloc_time(p, H5D_ALLOC_TIME_EARLY);
  };
  expect_read({.name = "contiguous"});
  expect_read({.name = "compact", .set = compact});
  expect_read({.name = "one chunk", .set = chunks(1000)});
  expect_read({.name = "one chunk, deflate", .set = chunks(1000, "d")});
  expect_read({.name = "few chunks", .set = chunks(300)});
  expect_read({.name = "one element a chunk", .count = 70, .set = chunks(1)});
  expect_read({.name = "a chunk too large", .count = 10, .set = chunks(1000), .most = 1000});
  expect_read({.name = "allocated early", .set = early});
  expect_read({.name = "room to grow", .set = chunks(30, "sd"), .most = 5000});
  expect_read({.name = "thousands of chunks", .count = 30011, .set = chunks(5)});
  expect_read({.name = "thousands of filtered chunks", .count = 30011, .set = chunks(5, "sfd")});
}

TEST_P(Hdf5Reader, ReadsFiltersInEveryOrder) {
  for (const char* filters : {"s", "f", "d", "sd", "ds", "fd", "df", "sfd", "fsd", "dfs", "sdf"}) {
    expect_read({.name = filters, .set = chunks(300, filters)});
    expect_read({.name = filters, .type = H5T_STD_I64BE, .set = chunks(7, filters)});
  }
}

TEST_P(Hdf5Reader, ReadsIntegersOfEverySizeSignAndOrder) {
  const auto expect = [&](const char* name, hid_t type, std::int32_t most) {
    SCOPED_TRACE(name);
    for (const auto& set : {std::function<void(hid_t)>([](hid_t) {}), chunks(3, "sd")}) {
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
      add(create("a.h5"), {.type = type, .count = 4, .set = chunks(3)}, {1, 2, -3, 4});
    }
    expect_refused("a.h5", {"-3"});
  }
}

TEST_P(Hdf5Reader, ReadsADatasetThatWasMadeShorterOrLonger) {
  const Ids ids = some_ids(1000);
  for (const hsize_t extent : {hsize_t{1}, hsize_t{299}, hsize_t{600}, hsize_t{1000}}) {
    {
      const Handle file = create("a.h5");
      const Handle set = add(file, {.set = chunks(100, "d"), .most = 2000}, ids);
      H5Dset_extent(set.get(), &extent);
    }
    EXPECT_EQ(open("a.h5"), Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(extent)));
  }
  {
    const Handle file = create("longer.h5");
    const Handle set = add(file, {.set = chunks(100, "d"), .most = 2000}, ids);
    const hsize_t extent = 1001;
    H5Dset_extent(set.get(), &extent);
  }
  expect_refused("longer.h5", {"1001 elements in the dataset tokens", "never written"});
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
  if (is_newest()) {
    {
      add(create("grows.h5"), {.set = chunks(300), .grows = true}, ids);
    }
    expect_refused("grows.h5", {"a fixed array lists", "an extensible array"});
  } else {
    expect_read({.name = "grows", .set = chunks(300, "sd"), .grows = true});
  }
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

TEST_P(Hdf5Reader, NamesTheVersionOfHdf5WhoseChunksItDoesNotRead) {
  if (is_newest()) GTEST_SKIP() << "a changed byte breaks the checksum of its header";
  { add(create("a.h5"), {.set = chunks(100, "d")}, some_ids(1000)); }
  std::string bytes = content("a.h5");
  const std::size_t layout = bytes.find("\x03\x02\x02");  // version, chunked, dimensions + 1
  ASSERT_NE(layout, std::string::npos);
  ASSERT_EQ(bytes.find("\x03\x02\x02", layout + 1), std::string::npos);
  bytes[layout] = 5;
  write("b.h5", bytes);
  expect_refused("b.h5", {"layout of version 5, which HDF5 2.0 and newer",
                          "HDF5 2.0's h5repack --low=0 --high=2 FILE NEW.h5"});
  bytes[layout] = 2;
  write("b.h5", bytes);
  expect_refused("b.h5", {"HDF5 1.6.3", "a layout of version 2"});
}

/// Every byte of the structure, and many of the elements, changed in several ways: a file is read
/// or refused in one line.
TEST_P(Hdf5Reader, NoChangedByteLeadsAstray) {
  const Ids ids = some_ids(200);
  { add(create("a.h5"), {.count = 200, .set = chunks(30, "sfd")}, ids); }
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
  EXPECT_GT(refused, std::size_t{300});
  for (std::size_t bytes = 1; bytes < good.size(); bytes += 7) {
    write("b.h5", good.substr(0, bytes));
    EXPECT_THROW((void)open("b.h5"), Error) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(OldestAndNewestFormat, Hdf5Reader, testing::Bool());

TEST_F(FilesTest, ElementsOfAFilteredChunkThatChangedAreRefused) {
  io::hdf5::be_quiet();
  {
    const Handle file(H5Fcreate(path("a.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
                      H5Fclose);
    const Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    chunks(500, "f")(properties.get());
    const hsize_t extent = 500;
    const Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    const Handle set(H5Dcreate2(file.get(), "tokens", H5T_STD_U16LE, space.get(), H5P_DEFAULT,
                                properties.get(), H5P_DEFAULT),
                     H5Dclose);
    const Ids ids(500, 0x1234);
    H5Dwrite(set.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids.data());
  }
  std::string bytes = content("a.h5");
  const std::size_t at = bytes.find("\x34\x12\x34\x12\x34\x12");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 100] = static_cast<char>(bytes[at + 100] ^ 4);
  write("b.h5", bytes);

  expect_error(ExitCode::data, {"chunk 0 of the dataset tokens", "another checksum (fletcher32)"},
               [&] { (void)io::open_tokens({path("b.h5")}, io::RawIds::uint16, 50000, 1); });
}

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
