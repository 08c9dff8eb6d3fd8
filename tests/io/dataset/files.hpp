// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/io/dataset.hpp"
#include "support/files.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {

/// A test with an empty folder of its own.
class FilesTest : public testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  std::string write(const std::string& name, std::string_view content) {
    write_file(path(name), content);
    return path(name);
  }
  [[nodiscard]] std::string content(const std::string& name) const { return read_file(path(name)); }
  [[nodiscard]] std::size_t number_of_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  TempFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
};

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
