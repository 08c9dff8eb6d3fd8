// SPDX-License-Identifier: Apache-2.0
#include "hdf5/superblock.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace hyperslab::io::hdf5 {
namespace {

constexpr std::uint64_t kUndefined = ~std::uint64_t{0};
/// Nodes of trees are 2 K entries wide; HDF5 writes 4, 16 and 32 unless told otherwise.
constexpr unsigned kMostOfK = 4096;

/// Reads fields, which are little-endian, and keeps the first problem.
class Superblock {
 public:
  Superblock(std::span<const std::byte> head, std::uint64_t file_bytes)
      : head_(head), file_bytes_(file_bytes) {}

  std::string problem() {
    constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 26, '\n'};
    if (head_.size() < 9 || std::memcmp(head_.data(), kSignature.data(), 8) != 0) {
      return "it does not begin with HDF5's signature";
    }
    const auto version = static_cast<unsigned>(number(8, 1));
    if (version > 3) return fmt::format("the superblock is of version {}, not 0 to 3", version);
    const std::size_t needed = version == 0 ? 96 : version == 1 ? 100 : 48;
    if (head_.size() < needed) {
      return fmt::format("the superblock has {} of {} bytes", head_.size(), needed);
    }
    if (version < 2) {
      check_first(version);
    } else {
      check_second();
    }
    return problem_;
  }

 private:
  [[nodiscard]] std::uint64_t number(std::size_t at, std::size_t bytes) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= std::to_integer<std::uint64_t>(head_[at + i]) << (8 * i);
    }
    return value;
  }
  void require(bool good, const std::string& problem) {
    if (!good && problem_.empty()) problem_ = "the superblock has " + problem;
  }
  void require_sizes(std::size_t at) {
    require(number(at, 1) == 8 && number(at + 1, 1) == 8,
            fmt::format("addresses of {} and lengths of {} bytes instead of 8", number(at, 1),
                        number(at + 1, 1)));
  }
  void require_width(std::size_t at, const char* what) {
    const std::uint64_t k = number(at, 2);
    require(k >= 1 && k <= kMostOfK, fmt::format("{} K of {}, not 1 to {}", what, k, kMostOfK));
  }
  void require_inside(std::size_t at, const char* what) {
    const std::uint64_t address = number(at, 8);
    require(address < file_bytes_,
            fmt::format("{} at byte {} of a file of {} bytes", what, address, file_bytes_));
  }
  void require_undefined(std::size_t at, const char* what) {
    require(number(at, 8) == kUndefined, std::string(what) + ", which no token file needs");
  }
  /// The file may be longer than it says, as HDF5 allows, but not shorter.
  void require_ends(std::size_t base, std::size_t end) {
    require(number(base, 8) == 0, fmt::format("a base address of {}, not 0", number(base, 8)));
    require(number(end, 8) <= file_bytes_,
            fmt::format("an end at byte {} of a truncated file of {} bytes", number(end, 8),
                        file_bytes_));
  }

  /// Versions 0 and 1: widths of trees, four addresses, the symbol table entry of the root group.
  void check_first(unsigned version) {
    require(number(9, 1) == 0 && number(10, 1) == 0 && number(12, 1) == 0,
            "parts of unknown versions");
    require_sizes(13);
    require_width(16, "a group leaf");
    require_width(18, "a group internal");
    if (version == 1) require_width(24, "an indexed storage internal");
    const std::size_t base = version == 0 ? 24 : 28;
    require_ends(base, base + 16);
    require_undefined(base + 8, "a list of free space");
    require_undefined(base + 24, "driver information");
    const std::size_t root = base + 32;
    require_inside(root + 8, "the root group");
    const std::uint64_t cached = number(root + 16, 4);
    require(cached <= 1, fmt::format("a root group of kind {}, not 0 or 1", cached));
    if (cached == 1) {
      require_inside(root + 24, "the root group's tree");
      require_inside(root + 32, "the root group's names");
    }
  }

  /// Versions 2 and 3, whose checksum the library checks.
  void check_second() {
    require_sizes(9);
    require_ends(12, 28);
    if (number(20, 8) != kUndefined) require_inside(20, "the extension");
    require_inside(36, "the root group");
  }

  std::span<const std::byte> head_;
  std::uint64_t file_bytes_;
  std::string problem_;
};

}  // namespace

std::string superblock_problem(std::span<const std::byte> head, std::uint64_t file_bytes) {
  return Superblock(head, file_bytes).problem();
}

std::string superblock_problem(const std::string& path) {
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(path, unknown);
  std::ifstream file(path, std::ios::binary);
  if (unknown || !file) return "";
  std::array<std::byte, kMostOfSuperblock> head{};
  file.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(head.size()));
  return superblock_problem(std::span(head).first(static_cast<std::size_t>(file.gcount())), bytes);
}

}  // namespace hyperslab::io::hdf5
