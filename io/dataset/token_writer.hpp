// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "files/atomic_file.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// Writes a token file of the format that the suffix of its path names: .bin (llm.c), .npy, .h5 or
/// .hdf5. Ids are uint16 if the vocabulary has at most 65,536 ids, else uint32. Nothing is seen
/// under `path` before finish().
class TokenWriter {
 public:
  /// `vocabulary`: of the tokens, kept in .bin and .h5, whose `end` separates the documents of HDF5
  /// files. Throws Error(usage) for another
  /// suffix, Error(storage) if the file cannot be made.
  TokenWriter(const std::string& path, const VocabularyRecord& vocabulary);

  /// Throws Error(storage) if writing fails, an internal Error for ids outside the vocabulary,
  /// and Error(data) before a .bin has more tokens than its header can hold: 2^31 - 1.
  void append(std::span<const std::int32_t> ids);
  /// Appends one document, and for each of its ids whether it counts as a target: the `loss_mask`.
  /// From the first call on documents are these, whatever ends them. For .h5 alone, without calls
  /// of append().
  void append_document(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask);
  /// Completes and renames the file; returns its tokens.
  std::int64_t finish();

 private:
  enum class Format : std::uint8_t { bin, npy, hdf5 };
  static Format format_of(const std::string& path);

  [[noreturn]] void fail_length() const;
  void flush();
  void finish_bin();
  void finish_npy();
  void finish_hdf5();
  void write_ids(AtomicFile& out, std::int64_t ids_at, std::int64_t starts_at);

  std::string path_;
  Format format_;
  VocabularyRecord vocabulary_;
  std::int64_t width_;  ///< bytes of an id
  std::int64_t count_ = 0;
  std::int64_t documents_ = 0;
  bool document_begins_ = true;
  std::vector<std::byte> buffer_;
  AtomicFile file_;  ///< for .h5 it has the ids alone, which the end copies into the HDF5 file
  std::optional<AtomicFile> mask_;  ///< likewise, with append_document()
  std::vector<std::uint8_t> mask_buffer_;
  std::vector<std::int64_t> starts_;  ///< first tokens of these documents
};

/// Writes `ids` as one file, as above, without a record of the vocabulary.
void write_token_file(const std::string& path, std::span<const std::int32_t> ids,
                      std::int64_t vocabulary, std::int32_t end_of_text = -1);

}  // namespace hyperslab::io
