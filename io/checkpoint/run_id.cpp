// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/run_id.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <random>

#include "files/atomic_file.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

constexpr const char* kName = "run_id";
constexpr std::size_t kDigits = 32;
constexpr std::uint64_t kMostIdBytes = 1 << 14;

std::string path_of(const std::string& checkpoints) { return checkpoints + "/" + kName; }

std::string resolved(const std::string& checkpoints) {
  std::error_code error;
  return std::filesystem::weakly_canonical(checkpoints, error).string();
}

std::string random_id() {
  std::random_device source;
  std::string id;
  while (id.size() < kDigits) id += fmt::format("{:08x}", source());
  return id;
}

bool is_id(const std::string& text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace

std::string read_run_id(const std::string& checkpoints) {
  std::string text;
  try {
    text = storage::read_text(path_of(checkpoints), kMostIdBytes);
  } catch (const Error&) {
    return "";
  }
  const std::string id = text.substr(0, kDigits);
  return is_id(id) && text == fmt::format("{} {}\n", id, resolved(checkpoints)) ? id : "";
}

std::string write_run_id(const std::string& checkpoints, const std::string& id) {
  std::string written = id.empty() ? random_id() : id;
  replace_text(path_of(checkpoints), fmt::format("{} {}\n", written, resolved(checkpoints)));
  return written;
}

void remove_run_id(const std::string& checkpoints) {
  std::error_code error;
  const std::string path = path_of(checkpoints);
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    storage::remove_tree(path);
  }
}

}  // namespace hyperslab::io
