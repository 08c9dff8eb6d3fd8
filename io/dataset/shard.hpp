// SPDX-License-Identifier: Apache-2.0
// One token file, whatever its format; private to io.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dataset/mapped_file.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// Little-endian element types of token files.
enum class IdType : std::uint8_t { u16, u32, i32, i64 };
[[nodiscard]] std::int64_t size_of(IdType type);
[[nodiscard]] const char* name_of(IdType type);  ///< "uint16"

/// Values of the tokens of a file.
struct ShardColumn {
  std::span<const std::byte> bytes{};  ///< `columns` elements of 4 bytes a token; empty: none
  std::int64_t columns = 1;
  std::string path = {};  ///< the column's own file, beside the tokens
  MappedFile file;
  std::vector<std::byte> memory;  ///< elements that lie in no file in one piece

  [[nodiscard]] bool is_there() const { return !bytes.empty(); }
};

/// Token ids in memory: a window on the mapped file, or on `memory` if the file's layout does
/// not allow that.
struct Shard {
  std::string path;
  std::string format;  ///< "llm.c uint16", "npy int32", "raw uint16", "HDF5 uint16"
  IdType type = IdType::u16;
  std::int64_t count = 0;   ///< tokens
  std::int64_t offset = 0;  ///< bytes from the file's start to the first token; -1: not mapped
  MappedFile file;
  FileStamp opened;  ///< the file when it was opened, mapped or not
  std::vector<std::byte> memory;
  VocabularyRecord vocabulary;
  bool has_mask = false;          ///< a byte a token, 0: does not count as a target
  std::int64_t mask_offset = -1;  ///< bytes from the file's start; -1: in mask_memory
  std::vector<std::byte> mask_memory;
  TokenColumns columns;                                  ///< those that are asked for
  std::array<ShardColumn, kTokenColumns.size()> values;  ///< by TokenColumn; f32
  ShardColumn teacher_ids;                               ///< i32
  ShardColumn teacher_values;                            ///< f32

  [[nodiscard]] const std::byte* ids() const {
    return offset >= 0 ? file.bytes().data() + offset : memory.data();
  }
  [[nodiscard]] std::int64_t bytes() const { return count * size_of(type); }
  [[nodiscard]] const std::byte* mask() const {
    return mask_offset >= 0 ? file.bytes().data() + mask_offset : mask_memory.data();
  }
};

/// Calls action for every column that is there.
template <class Action>
void for_each_column(const Shard& shard, Action&& action) {
  const auto visit = [&](const ShardColumn& column) {
    if (column.is_there()) action(column);
  };
  for (const ShardColumn& column : shard.values) visit(column);
  visit(shard.teacher_ids);
  visit(shard.teacher_values);
}

/// Opens one file of any format; `raw` (uint16 or uint32) is the type in .bin files without a
/// header. Checks the header against the file, not the ids. `loss_mask`: the file must have one,
/// and the columns that are needed. Throws Error(data).
[[nodiscard]] Shard open_shard(const std::string& path, IdType raw, bool loss_mask = false,
                               const ColumnNeeds& needs = {});

/// First token of every document in the file, ascending from 0, by its own list or else by
/// `end_token`; as TokenSource::documents().
[[nodiscard]] std::vector<std::int64_t> documents_of(const Shard& shard, std::int32_t end_token);

[[nodiscard]] bool has_llmc_header(const Shard& shard);  ///< also a damaged or big-endian one
void read_llmc_header(Shard& shard);
void read_raw(Shard& shard, IdType raw);
[[nodiscard]] bool has_npy_magic(const Shard& shard);
void read_npy_header(Shard& shard);
[[nodiscard]] bool has_hdf5_signature(const Shard& shard);
void read_hdf5_tokens(Shard& shard, bool loss_mask);
/// Opens the columns that are asked for: datasets of an HDF5 file, else NAME.COLUMN.npy beside it.
void open_columns(Shard& shard, const ColumnNeeds& needs);
/// True if the values of a column are read: all, or weights alone.
[[nodiscard]] inline bool reads(const ColumnNeeds& needs, TokenColumn column) {
  return needs.columns.has(column) && (needs.all || column == TokenColumn::weight);
}
/// Opens the datasets of an HDF5 file that are there and read.
void read_hdf5_columns(Shard& shard, const ColumnNeeds& needs);
/// The elements of another .npy file as `descr` has them, "<f4"; absent if there is no such file.
/// Throws Error(data) for another shape than (tokens,) or (tokens, columns).
[[nodiscard]] ShardColumn open_npy_column(const Shard& shard, std::string_view name,
                                          std::string_view descr, bool is_matrix);
/// TokenSource::read_values and read_teacher_ids of a shard's tokens from `index` on.
void read_shard_values(const Shard& shard, std::int64_t index, std::span<float> out);
void read_shard_teachers(const Shard& shard, std::int64_t index, std::int64_t vocabulary,
                         std::span<std::int32_t> out);
/// The dataset `documents`; empty if there is none. Throws Error(data) if its indices are not
/// ascending from 0 within the tokens.
[[nodiscard]] std::vector<std::int64_t> read_hdf5_documents(const Shard& shard);

}  // namespace hyperslab::io
