// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hyperslab::io {

inline constexpr std::int64_t kTarBlock = 512;  ///< bytes; headers and contents fill whole ones

/// Bytes that a content of so many takes, its last block filled up.
[[nodiscard]] constexpr std::int64_t in_tar_blocks(std::int64_t bytes) {
  return (bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
}

/// A regular file or a folder of a tar.
struct TarMember {
  std::string name;  ///< relative, without "./" before it; a folder's name ends in '/'
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  [[nodiscard]] bool is_folder() const { return name.ends_with('/'); }
};

/// Walks the headers of a tar in memory: ustar (POSIX.1-1988), GNU's long names, and names and
/// sizes of pax (POSIX.1-2001). Throws Error(data) that names file and member for a tar that is cut
/// or damaged, for names that lead out of a folder, and for members that are links, devices or
/// sparse files.
class TarReader {
 public:
  /// `path`: for messages.
  TarReader(std::string path, std::span<const std::byte> bytes);
  /// The folder that holds all members is passed over. Nothing at the end.
  [[nodiscard]] std::optional<TarMember> next();

 private:
  struct Header;
  [[nodiscard]] Header read_header() const;
  [[nodiscard]] std::string_view body(const Header& header) const;
  void read_pax(std::string_view records);
  void require_regular(const Header& header, const std::string& name) const;
  void require_inside(const std::string& name) const;
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const;

  std::string path_;
  std::span<const std::byte> bytes_;
  std::int64_t at_ = 0;                      ///< offset of the next header
  std::string long_name_;                    ///< name of the next member; empty: in its header
  std::optional<std::int64_t> member_size_;  ///< size of the next member if pax gives it
};

/// The name in a header of 512 bytes, as ustar has it.
[[nodiscard]] std::string tar_header_name(std::span<const std::byte> header);

/// Throws Error(data) if these are the first bytes of a compressed file.
void require_uncompressed(const std::string& path, std::span<const std::byte> bytes);

}  // namespace hyperslab::io
