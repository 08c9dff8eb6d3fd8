// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/text_file.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <map>
#include <sstream>
#include <vector>

#include "files/atomic_file.hpp"
#include "hyperslab/io/npy_file.hpp"
#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using TextFile = FilesTest;

TEST_F(TextFile, IsReplacedAsAWhole) {
  const std::string name = write("a.json", "a longer text of before");

  io::write_text_file(name, "new");

  EXPECT_EQ(content("a.json"), "new");
  EXPECT_EQ(number_of_files(), 1U);
}

TEST_F(TextFile, TakesLinesOfManyAtOneTime) {
  constexpr int kWriters = 8;
  constexpr int kLines = 40;
  std::vector<std::future<void>> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.push_back(std::async(std::launch::async, [&, writer] {
      for (int i = 0; i < kLines; ++i) {
        io::append_line(path("a.jsonl"),
                        std::string(100 + writer, static_cast<char>('a' + writer)));
      }
    }));
  }
  for (auto& writer : writers) writer.get();

  std::istringstream lines(content("a.jsonl"));
  std::map<std::string, int> counts;
  for (std::string line; std::getline(lines, line);) ++counts[line];
  ASSERT_EQ(counts.size(), static_cast<std::size_t>(kWriters));
  for (const auto& [line, count] : counts) EXPECT_EQ(count, kLines) << line;
}

TEST_F(TextFile, ALineWithoutAnEndIsEndedBeforeTheNext) {
  const std::string name = write("a.jsonl", "one\ntwo");

  io::append_line(name, "three");

  EXPECT_EQ(content("a.jsonl"), "one\ntwo\nthree\n");
}

TEST_F(TextFile, StaysAsItWasIfStorageEnds) {
  const std::string name = write("a.json", "before");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight{10, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &tight);

  for (const std::string& path_of_one : {name, path("b.json")}) {
    expect_error(ExitCode::storage, {"cannot write '" + path_of_one + "': File too large"},
                 [&] { io::write_text_file(path_of_one, std::string(100, 'x')); });
    expect_error(ExitCode::storage, {"cannot write '" + path_of_one + "': File too large"},
                 [&] { io::append_line(path_of_one, std::string(100, 'x')); });
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);

  EXPECT_EQ(content("a.json"), "before");
  EXPECT_EQ(number_of_files(), 1U);
}

TEST_F(TextFile, ReportsWhyThereCanBeNone) {
  expect_error(ExitCode::storage,
               {"none/a.json': No such file or directory; make its folder, or give another path"},
               [&] { io::write_text_file(path("none/a.json"), "x"); });
  expect_error(ExitCode::storage, {"': Is a directory; give the path of a file"},
               [&] { io::write_text_file(folder_.string(), "x"); });
}

TEST_F(TextFile, ThatIsProtectedHasNoPlace) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write every file";
  const std::string name = write("a.json", "before");
  std::filesystem::permissions(name, std::filesystem::perms::owner_read);

  expect_error(ExitCode::storage, {"a.json': Permission denied; give a path that can be written"},
               [&] { io::require_place_for_file(name); });
}

TEST_F(TextFile, IsSaidToHaveNoPlaceBeforeItIsWritten) {
  const std::string name = write("a.json", "before");

  io::require_place_for_file(name);
  io::require_place_for_file(path("new.json"));
  io::require_place_for_file("beside.json");
  io::require_place_for_file("/dev/null");

  EXPECT_EQ(content("a.json"), "before");
  EXPECT_EQ(number_of_files(), 1U);
  for (const std::string& file : {path("none/a.json"), name + "/a.json", folder_.string()}) {
    expect_error(ExitCode::storage, {"cannot write '" + file + "': "},
                 [&] { io::require_place_for_file(file); });
  }
}

TEST_F(TextFile, ArraysGoThroughLinksAndIntoPipes) {
  const std::string name = write("a.npy", "before");
  std::filesystem::create_symlink(name, folder_ / "link");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const auto write_row = [](const std::string& to) {
    io::NpyFile file(to, 1, 2);
    file.append(std::vector<float>{1.0F, 2.0F});
    file.finish();
  };
  write_row(path("expected.npy"));

  write_row(path("link"));
  auto read = std::async(std::launch::async, [&] { return content("pipe"); });
  write_row(path("pipe"));

  EXPECT_EQ(content("a.npy"), content("expected.npy"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe"));
  EXPECT_EQ(read.get(), content("expected.npy"));
}

TEST_F(TextFile, FilesThatAreRenamedDoNotReplacePipes) {
  ASSERT_EQ(::mkfifo(path("pipe.bin").c_str(), 0600), 0);
  std::filesystem::create_symlink(path("pipe.bin"), folder_ / "link.bin");

  for (const char* name : {"pipe.bin", "link.bin"}) {
    expect_error(ExitCode::storage,
                 {std::string(name) + "': a device or a pipe would be replaced by a file; give the "
                                      "path of a file"},
                 [&] { io::AtomicFile file(path(name)); });
  }

  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe.bin"));
  EXPECT_EQ(number_of_files(), 2U);
}

TEST_F(TextFile, WritesThroughLinksAndIntoPipes) {
  const std::string name = write("a.json", "before");
  std::filesystem::create_symlink(name, folder_ / "link");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  auto read = std::async(std::launch::async, [&] { return content("pipe"); });

  io::write_text_file(path("link"), "through");
  io::write_text_file(path("pipe"), "into");

  EXPECT_EQ(content("a.json"), "through");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_EQ(read.get(), "into");
}

}  // namespace
}  // namespace hyperslab::test
