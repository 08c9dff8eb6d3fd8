// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "files/storage.hpp"
#include "hdf5/backing.hpp"

namespace hyperslab::io {

/// A file of HDF5's on the disk that changes with commit() only; until then HDF5's writes wait in
/// memory. First go the bytes that make the file longer, which a full disk refuses: then
/// nothing of the older part has changed yet, and readers find the state of the commit before.
class StagedFile final : public hdf5::Backing {
 public:
  static constexpr std::uint64_t kPageBytes = 4096;

  /// Creates the file or empties it. Throws Error(storage). More than `most_bytes` do not wait.
  explicit StagedFile(const std::string& path, std::uint64_t most_bytes = std::uint64_t{64} << 20);
  ~StagedFile() override;  ///< commits
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  StagedFile(StagedFile&&) = delete;
  StagedFile& operator=(StagedFile&&) = delete;

  void read(std::uint64_t offset, char* out, std::size_t bytes) override;
  void write(std::uint64_t offset, const char* data, std::size_t bytes) override;
  void set_size(std::uint64_t bytes) override { size_ = bytes; }
  [[nodiscard]] std::uint64_t size() const override { return size_; }

  /// Puts the waiting pages into the file. Returns why that failed, or nothing; after a failure
  /// they wait on, for the next call.
  [[nodiscard]] std::string commit();
  /// Nothing more will ever be written: too much waits, or the file cannot be read.
  [[nodiscard]] bool is_broken() const { return !broken_.empty(); }
  [[nodiscard]] bool is_removed() const { return file_.is_removed(); }

 private:
  using Page = std::array<char, kPageBytes>;
  /// The page with the waiting writes; in memory from now on.
  Page& staged(std::uint64_t page);
  [[nodiscard]] Page read_page(std::uint64_t page);
  void write_pages();

  storage::File file_;
  std::uint64_t most_bytes_;
  std::map<std::uint64_t, Page> pages_;  ///< pages that wait for a commit, by number
  std::uint64_t size_ = 0;               ///< as HDF5 sees it
  std::string broken_;
};

}  // namespace hyperslab::io
