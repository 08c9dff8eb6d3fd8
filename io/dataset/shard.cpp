// SPDX-License-Identifier: Apache-2.0
#include "dataset/shard.hpp"

#include <bit>

#include "dataset/ids.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

std::int64_t size_of(IdType type) {
  switch (type) {
    case IdType::u16: return 2;
    case IdType::u32:
    case IdType::i32: return 4;
    case IdType::i64: return 8;
  }
  return 0;
}

const char* name_of(IdType type) {
  switch (type) {
    case IdType::u16: return "uint16";
    case IdType::u32: return "uint32";
    case IdType::i32: return "int32";
    case IdType::i64: return "int64";
  }
  return "";
}

Shard open_shard(const std::string& path, IdType raw, bool loss_mask, const ColumnNeeds& needs) {
  Shard shard;
  shard.path = path;
  shard.file = MappedFile(path);
  shard.opened = shard.file.stamp();
  if (has_npy_magic(shard) || path.ends_with(".npy")) {
    read_npy_header(shard);
  } else if (has_hdf5_signature(shard) || path.ends_with(".h5") || path.ends_with(".hdf5")) {
    read_hdf5_tokens(shard, loss_mask);
  } else if (has_llmc_header(shard)) {
    read_llmc_header(shard);
  } else if (path.ends_with(".bin")) {
    read_raw(shard, raw);
  } else {
    fail_file(path, "a token file (.bin, .npy or .h5)", "none of these formats",
              "tokenize text first: hyperslab tokenize --vocab bytes --input " + path +
                  " --output tokens.bin");
  }
  if (shard.count == 0) {
    fail_file(path, "tokens", "a " + shard.format + " file with 0 tokens", "tokenize again");
  }
  if (loss_mask && !shard.has_mask) {
    fail_file(path, "a dataset loss_mask, one byte a token",
              "none in this " + shard.format + " file",
              "set data.loss_mask to false, or write tokens and mask as HDF5");
  }
  if (needs.columns.count() > 0) open_columns(shard, needs);
  return shard;
}

std::vector<std::int64_t> documents_of(const Shard& shard, std::int32_t end_token) {
  std::vector<std::int64_t> starts;
  if (shard.format.starts_with("HDF5")) starts = read_hdf5_documents(shard);
  if (!starts.empty()) return starts;
  if (end_token < 0) {
    fail_file(shard.path, "a list of its documents", "a " + shard.format + " file without one",
              "set data.end_token to the id that ends documents, or tokenize to .h5");
  }
  return documents_by_end(shard, end_token);
}

}  // namespace hyperslab::io
