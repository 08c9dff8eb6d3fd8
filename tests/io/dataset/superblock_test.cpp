// SPDX-License-Identifier: Apache-2.0
#include "hdf5/superblock.hpp"

#include <array>
#include <cstring>
#include <fstream>

#include "hdf5/handles.hpp"
#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

class SuperblockTest : public FilesTest {
 protected:
  /// An HDF5 file with one dataset `tokens`, written by the library in its oldest or newest format.
  std::string file_of(bool newest) {
    const io::hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    if (newest) H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    {
      const io::hdf5::Handle file(
          H5Fcreate(path("made.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
      const hsize_t count = 4;
      const std::array<std::uint16_t, 4> ids = {1, 2, 3, 4};
      const io::hdf5::Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
      const io::hdf5::Handle dataset(H5Dcreate2(file.get(), "tokens", H5T_STD_U16LE, space.get(),
                                                H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                     H5Dclose);
      H5Dwrite(dataset.get(), H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids.data());
    }
    return content("made.h5");
  }
  /// What open_tokens says of `bytes` with `value` written at byte `at`.
  template <class T>
  void refuse(std::string bytes, std::size_t at, T value, const std::string& part) {
    SCOPED_TRACE(part);
    std::memcpy(bytes.data() + at, &value, sizeof value);
    const std::string name = write("damaged.h5", bytes);
    expect_error(ExitCode::data, {name, part},
                 [&] { (void)io::open_tokens({name}, io::RawIds::uint16, 257, 1); });
  }
  void take(const std::string& name) {
    EXPECT_EQ(read_all(*io::open_tokens({name}, io::RawIds::uint16, 257, 1)),
              (std::vector<std::int32_t>{1, 2, 3, 4}));
  }
};

constexpr auto kFar = std::uint64_t{1} << 40;

TEST_F(SuperblockTest, TakesWhatTheLibraryWrites) {
  take(write("oldest.h5", file_of(false)));
  take(write("newest.h5", file_of(true)));
  take(write("longer.h5", file_of(false) + std::string(100, '\0')));
}

TEST_F(SuperblockTest, RefusesVersionsSizesAndWidths) {
  const std::string bytes = file_of(false);
  ASSERT_EQ(bytes[8], 0);

  refuse(bytes, 0, std::uint8_t{0}, "signature");
  refuse(bytes, 8, std::uint8_t{4}, "version 4");
  refuse(bytes, 12, std::uint8_t{1}, "unknown versions");
  refuse(bytes, 13, std::uint8_t{16}, "addresses of 16");
  refuse(bytes, 14, std::uint8_t{2}, "lengths of 2");
  refuse(bytes, 16, std::uint16_t{0}, "group leaf K of 0");
  refuse(bytes, 18, std::uint16_t{65535}, "group internal K of 65535");
  refuse(bytes.substr(0, 60), 20, std::uint32_t{0}, "60 of 96 bytes");
}

TEST_F(SuperblockTest, RefusesAddressesBeyondTheFileAndDriverInformation) {
  const std::string bytes = file_of(false);
  ASSERT_EQ(bytes[8], 0);

  refuse(bytes, 24, std::uint64_t{512}, "base address of 512");
  refuse(bytes, 32, std::uint64_t{96}, "list of free space");
  refuse(bytes, 40, kFar, "truncated file");
  refuse(bytes, 48, std::uint64_t{96}, "driver information");
  refuse(bytes, 64, kFar, "the root group at byte");
  refuse(bytes, 72, std::uint32_t{2}, "of kind 2");
  refuse(bytes, 80, kFar, "the root group's tree");
  refuse(bytes, 88, kFar, "the root group's names");
}

TEST_F(SuperblockTest, RefusesTheSameOfNewFiles) {
  const std::string bytes = file_of(true);
  ASSERT_GE(bytes[8], 2);

  refuse(bytes, 9, std::uint8_t{4}, "addresses of 4");
  refuse(bytes, 12, std::uint64_t{8}, "base address of 8");
  refuse(bytes, 20, kFar, "the extension at byte");
  refuse(bytes, 28, kFar, "truncated file");
  refuse(bytes, 36, kFar, "the root group at byte");
}

}  // namespace
}  // namespace hyperslab::test
