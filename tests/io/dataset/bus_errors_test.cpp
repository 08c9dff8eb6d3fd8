// SPDX-License-Identifier: Apache-2.0
// Each in a process of its own, which ends by what it reads.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>

#include "dataset/mapped_file.hpp"
#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

constexpr std::size_t kBytes = 64 << 10;

class BusErrors : public FilesTest {
 protected:
  std::string make(const std::string& name) { return write(name, std::string(kBytes, 'x')); }
  static void touch_last(std::span<const std::byte> bytes) {
    [[maybe_unused]] const volatile std::byte last = bytes.back();
  }
};

/// Not by our handler: by the signal, or by a sanitizer's.
bool left_to_others(int status) {
  return WIFSIGNALED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3);
}

TEST_F(BusErrors, NameTheFileThatWasShortened) {
  const auto read_shortened = [&] {
    const io::MappedFile other(make("other.bin"));
    io::MappedFile moved;
    moved = io::MappedFile(make("tokens.bin"));
    const io::MappedFile file = std::move(moved);
    std::filesystem::resize_file(path("tokens.bin"), 5000);
    touch_last(other.bytes());
    touch_last(file.bytes());
  };

  EXPECT_EXIT(
      read_shortened(), testing::ExitedWithCode(3),
      "^hyperslab: token file '.*/tokens.bin': expected the 65536 bytes .* shortened while it "
      "was read.* do not change token files under a run\n$");
}

TEST_F(BusErrors, OfOtherMemoryAreLeftToOthers) {
  const auto read_other = [&] {
    const io::MappedFile known(make("known.bin"));
    const int fd = ::open(make("own.bin").c_str(), O_RDONLY);
    const void* own = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
    std::filesystem::resize_file(path("own.bin"), 0);
    touch_last({static_cast<const std::byte*>(own), kBytes});
  };
  const auto send = [&] {
    const io::MappedFile known(make("known.bin"));
    std::raise(SIGBUS);
  };

  EXPECT_EXIT(read_other(), left_to_others, "");
  EXPECT_EXIT(send(), left_to_others, "");
}

TEST_F(BusErrors, ForgetFilesThatAreUnmapped) {
  const auto read_where_it_was = [&] {
    const std::byte* begin = io::MappedFile(make("first.bin")).bytes().data();
    const int fd = ::open(make("own.bin").c_str(), O_RDONLY);
    void* expected = const_cast<std::byte*>(begin);
    const void* own = ::mmap(expected, kBytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    std::filesystem::resize_file(path("own.bin"), 0);
    touch_last({static_cast<const std::byte*>(own), kBytes});
  };

  EXPECT_EXIT(read_where_it_was(), left_to_others, "");
}

}  // namespace
}  // namespace hyperslab::test
