// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/npy_file.hpp"

#include <fmt/format.h>

#include "files/atomic_file.hpp"
#include "files/npy_header.hpp"
#include "hyperslab/io/text_file.hpp"

namespace hyperslab::io {

std::string npy_header(const std::string& type, const std::string& shape) {
  constexpr std::size_t kDictBytes = kNpyHeaderBytes - 10;
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(kDictBytes);
  header += '\0';
  header += fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type, shape);
  header.resize(kNpyHeaderBytes - 1, ' ');
  return header + '\n';
}

NpyFile::NpyFile(const std::string& path, std::int64_t elements)
    : NpyFile(path, npy_header("<f4", fmt::format("({},)", elements))) {}

NpyFile::NpyFile(const std::string& path, std::int64_t rows, std::int64_t columns)
    : NpyFile(path, npy_header("<f4", fmt::format("({}, {})", rows, columns))) {}

NpyFile::NpyFile(const std::string& path, const Images& images)
    : NpyFile(path, npy_header("|u1", fmt::format("({}, {}, {}, {})", images.count, images.rows,
                                                  images.columns, images.channels))) {}

NpyFile::NpyFile(const std::string& path, const std::string& header) : path_(path) {
  if (!is_written_in_place(path)) file_ = std::make_unique<AtomicFile>(path);
  append_bytes(std::as_bytes(std::span(header)));
}

NpyFile::~NpyFile() = default;

void NpyFile::append(std::span<const float> row) { append_bytes(std::as_bytes(row)); }

void NpyFile::append(std::span<const std::uint8_t> values) { append_bytes(std::as_bytes(values)); }

void NpyFile::append_bytes(std::span<const std::byte> bytes) {
  if (file_) return file_->append(bytes);
  in_place_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void NpyFile::finish() { file_ ? file_->commit() : write_text_file(path_, in_place_); }

}  // namespace hyperslab::io
