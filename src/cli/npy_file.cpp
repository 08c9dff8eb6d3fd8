// SPDX-License-Identifier: Apache-2.0
#include "npy_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::cli {

NpyFile::NpyFile(std::string path, std::int64_t rows, std::int64_t columns)
    : path_(std::move(path)),
      temporary_(fmt::format("{}.tmp.{}", path_, getpid())),
      file_(temporary_, std::ios::binary) {
  constexpr std::size_t kHeaderBytes = 128;  // a multiple of 64, as the format asks for
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(kHeaderBytes - 10);
  header += '\0';
  header +=
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  header.resize(kHeaderBytes - 1, ' ');
  file_ << header << '\n';
  check();
}

NpyFile::~NpyFile() {
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void NpyFile::check() {
  if (file_) return;
  throw Error(ExitCode::storage,
              fmt::format("cannot write '{}': {}; free space, or give a path on other storage",
                          path_, std::strerror(errno)));
}

void NpyFile::append(std::span<const float> row) {
  file_.write(reinterpret_cast<const char*>(row.data()),
              static_cast<std::streamsize>(row.size_bytes()));
  check();
}

void NpyFile::finish() {
  file_.close();
  if (file_ && std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    file_.setstate(std::ios::failbit);
  }
  check();
  temporary_.clear();
}

}  // namespace hyperslab::cli
