// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::test {

/// A test with an empty folder of its own.
class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("hyperslab_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~FilesTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return path(name);
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] std::size_t number_of_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::filesystem::path folder_;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Header of llm.c and `tokens` as uint16.
inline std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count,
                        const std::vector<std::uint16_t>& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = count;
  return bytes_of(header) + bytes_of(tokens);
}

/// Version 1 or 2 of .npy with this dict and body.
inline std::string npy(int version, const std::string& dict, const std::string& body) {
  std::string out("\x93NUMPY", 6);
  out += static_cast<char>(version);
  out += '\0';
  const auto length = static_cast<std::uint32_t>(dict.size() + 1);
  out.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return out + dict + '\n' + body;
}

inline std::vector<std::int32_t> read_all(const io::TokenSource& source) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(source.size()));
  source.read(0, out);
  return out;
}

/// EXPECTs an Error of this code whose message has all these parts.
inline void expect_error(ExitCode code, std::initializer_list<std::string> parts,
                         const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    }
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

/// Tokens 0, 1, 2, ... of a source that needs no file.
class Counting final : public io::TokenSource {
 public:
  explicit Counting(std::int64_t size) : size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    ASSERT_GE(first, 0);
    ASSERT_LE(first + static_cast<std::int64_t>(out.size()), size_);
    for (std::int32_t& id : out) id = static_cast<std::int32_t>(first++);
  }
  [[nodiscard]] std::string description() const override { return "counting"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }

 private:
  std::int64_t size_;
};

}  // namespace hyperslab::test
