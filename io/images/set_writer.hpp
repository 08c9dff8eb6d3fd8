// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "files/storage.hpp"
#include "images/tar_images.hpp"

namespace hyperslab::io {

/// Writes a packed set (packed_set.hpp) to a folder beside `output`, which finish() renames.
/// Without that the destructor removes it. Functions throw Error(storage) that names `output`, the
/// constructor also Error(usage) if `output` exists.
class SetWriter {
 public:
  SetWriter(std::string output, std::int64_t shard_bytes);
  ~SetWriter();
  SetWriter(const SetWriter&) = delete;
  SetWriter& operator=(const SetWriter&) = delete;
  SetWriter(SetWriter&&) = delete;
  SetWriter& operator=(SetWriter&&) = delete;

  /// `folder`: name of the class; `file`: the image's; either may be changed to fit into a tar.
  void add(const std::string& folder, const std::string& file, std::int64_t label,
           std::string_view image);
  struct Shard {
    std::string file;
    std::int64_t bytes = 0;
    std::int64_t images = 0;
  };
  /// Ends the last shard, and gives them all.
  [[nodiscard]] const std::vector<Shard>& end_shards();
  /// `set`: the text of set.json. After end_shards().
  void finish(const std::string& set);

 private:
  void begin_shard();
  void end_shard();
  void append(std::string_view bytes);
  void flush();
  [[nodiscard]] std::string member_name(const std::string& folder, const std::string& file);

  std::string output_;
  std::string temporary_;  ///< empty once it has been renamed
  std::int64_t shard_bytes_;
  std::optional<storage::File> file_;
  std::string buffer_;        ///< bytes that come after those already in the file
  std::int64_t written_ = 0;  ///< bytes of the file
  std::vector<Shard> shards_;
  std::vector<ImageRow> rows_;
  std::unordered_set<std::uint64_t> names_;  ///< hashes of members
};

}  // namespace hyperslab::io
