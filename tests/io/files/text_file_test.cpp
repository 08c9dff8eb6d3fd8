// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/text_file.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <future>

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
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);

  EXPECT_EQ(content("a.json"), "before");
  EXPECT_EQ(number_of_files(), 1U);
}

TEST_F(TextFile, TellsWhyThereCanBeNone) {
  expect_error(ExitCode::storage, {"none/a.json': No such file or directory"},
               [&] { io::write_text_file(path("none/a.json"), "x"); });
  expect_error(ExitCode::storage, {"': Is a directory"},
               [&] { io::write_text_file(folder_.string(), "x"); });
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
