// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace hyperslab::io {

/// As long as this lives, a SIGBUS at an address of a mapped file, which the kernel sends if the
/// file no longer reaches it, writes one line with the file's path to stderr, lets the watchdog
/// report to the other ranks, and ends the process with ExitCode::data; every other SIGBUS is left
/// to who handled it before. Of more than 16,384 files at once the last are not known.
class BusErrorLine {
 public:
  /// `kind`: the line's word for the file, "token file".
  BusErrorLine(std::span<const std::byte> mapped, const std::string& path, const char* kind);
  BusErrorLine(const BusErrorLine&) = delete;
  BusErrorLine& operator=(const BusErrorLine&) = delete;
  BusErrorLine(BusErrorLine&&) = delete;
  BusErrorLine& operator=(BusErrorLine&&) = delete;
  ~BusErrorLine();

 private:
  std::string line_;
  int slot_;  ///< -1: not known
};

}  // namespace hyperslab::io
