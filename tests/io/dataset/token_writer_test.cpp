// SPDX-License-Identifier: Apache-2.0
#include "dataset/token_writer.hpp"

#include <hdf5.h>
#include <sys/mman.h>

#include <limits>
#include <numeric>

#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;

class TokenWriters : public FilesTest, public testing::WithParamInterface<const char*> {
 protected:
  void round_trip(std::int64_t vocabulary, std::size_t count) {
    Ids ids(count);
    for (std::size_t i = 0; i < count; ++i) {
      ids[i] = static_cast<std::int32_t>((i * 7919 + 1) % static_cast<std::size_t>(vocabulary));
    }
    ids[0] = static_cast<std::int32_t>(vocabulary - 1);
    const std::string file = path(std::string("tokens.") + GetParam());

    io::write_token_file(file, ids, vocabulary);

    EXPECT_EQ(read_all(*io::open_tokens({file}, io::RawIds::uint16, vocabulary, 1)), ids);
    EXPECT_EQ(number_of_files(), 1U);
    const auto width = vocabulary <= 65536 ? 2U : 4U;
    EXPECT_LT(std::filesystem::file_size(file) - count * width, 8192U);
  }
};

TEST_P(TokenWriters, RoundTripUint16) { round_trip(65536, 1000003); }
TEST_P(TokenWriters, RoundTripUint32) { round_trip(65537, 1000003); }
TEST_P(TokenWriters, RoundTripOneToken) { round_trip(257, 1); }

TEST_P(TokenWriters, LeaveNothingWithoutFinishAndReplaceOnlyWithIt) {
  const std::string name = std::string("tokens.") + GetParam();
  write(name, "old");
  {
    io::TokenWriter writer(path(name), {.ids = 257});
    writer.append(Ids{1, 2, 3});
  }
  EXPECT_EQ(content(name), "old");
  EXPECT_EQ(number_of_files(), 1U);

  io::write_token_file(path(name), Ids{1, 2, 3}, 257);
  EXPECT_EQ(read_all(*io::open_tokens({path(name)}, io::RawIds::uint16, 257, 1)), (Ids{1, 2, 3}));
}

INSTANTIATE_TEST_SUITE_P(Formats, TokenWriters, testing::Values("bin", "npy", "h5"));

class TokenWriter : public FilesTest {};

TEST_F(TokenWriter, Hdf5HoldsTheStartsOfDocuments) {
  io::write_token_file(path("a.h5"), Ids{1, 2, 9, 3, 9, 9, 4}, 10, 9);

  const hid_t file = H5Fopen(path("a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, "documents", H5P_DEFAULT);
  ASSERT_EQ(H5Dget_storage_size(set), 4 * sizeof(std::int64_t));
  std::vector<std::int64_t> starts(4);
  H5Dread(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, starts.data());
  H5Dclose(set), H5Fclose(file);

  EXPECT_EQ(starts, (std::vector<std::int64_t>{0, 3, 5, 6}));
}

TEST_F(TokenWriter, RefusesMoreTokensThanABinHeaderCanHoldBeforeReadingThem) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::size_t kBytes = kMost * sizeof(std::int32_t);  // of addresses, not of memory
  void* unreadable =
      ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  const std::span ids(static_cast<const std::int32_t*>(unreadable), kMost);
  io::TokenWriter writer(path("a.bin"), {.ids = 257});
  writer.append(Ids{1, 2, 3});

  expect_error(ExitCode::data, {path("a.bin"), "2147483647 tokens", ".npy or .h5"},
               [&] { writer.append(ids.first(kMost - 2)); });
  ::munmap(unreadable, kBytes);
}

TEST_F(TokenWriter, RefusesOtherSuffixesAndIdsOutsideTheVocabulary) {
  expect_error(ExitCode::usage, {"a.txt", ".bin, .npy or .h5"},
               [&] { io::write_token_file(path("a.txt"), Ids{1}, 10); });
  EXPECT_THROW(io::write_token_file(path("a.bin"), Ids{10}, 10), Error);
  EXPECT_THROW(io::write_token_file(path("a.bin"), Ids{-1}, 10), Error);
  EXPECT_EQ(number_of_files(), 0U);
}

}  // namespace
}  // namespace hyperslab::test
