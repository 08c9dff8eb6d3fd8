// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace hyperslab::test {

/// A new folder, in memory where the machine has such a file system, removed at the end.
class TempFolder {
 public:
  TempFolder() : path_("/dev/shm/hyperslab_XXXXXX") {
    if (mkdtemp(path_.data()) != nullptr) return;
    path_ = testing::TempDir() + "hyperslab_XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder");
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  TempFolder(TempFolder&&) = delete;
  TempFolder& operator=(TempFolder&&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace hyperslab::test
