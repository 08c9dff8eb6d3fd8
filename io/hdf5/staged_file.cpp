// SPDX-License-Identifier: Apache-2.0
#include "hdf5/staged_file.hpp"

#include <algorithm>
#include <cstring>
#include <ranges>

#include "hdf5/pages.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {

StagedFile::StagedFile(const std::string& path, std::uint64_t most_bytes)
    : file_(storage::File::create(path)), most_bytes_(most_bytes) {}

StagedFile::~StagedFile() { (void)commit(); }

StagedFile::Page StagedFile::read_page(std::uint64_t page) {
  Page bytes{};
  try {
    (void)file_.read_at(page * kPageBytes, bytes.data(), bytes.size());
  } catch (const Error& error) {
    if (broken_.empty()) broken_ = error.what();
  }
  return bytes;
}

StagedFile::Page& StagedFile::staged(std::uint64_t page) {
  const auto found = pages_.find(page);
  return found != pages_.end() ? found->second
                               : pages_.emplace(page, read_page(page)).first->second;
}

void StagedFile::read(std::uint64_t offset, char* out, std::size_t bytes) {
  hdf5::for_pages(kPageBytes, offset, bytes, [&](auto page, auto inside, auto done, auto some) {
    const auto found = pages_.find(page);
    const Page& content = found != pages_.end() ? found->second : read_page(page);
    std::memcpy(out + done, content.data() + inside, some);
  });
}

void StagedFile::write(std::uint64_t offset, const char* data, std::size_t bytes) {
  size_ = std::max(size_, offset + bytes);
  if (is_broken()) return;
  hdf5::for_pages(kPageBytes, offset, bytes, [&](auto page, auto inside, auto done, auto some) {
    std::memcpy(staged(page).data() + inside, data + done, some);
  });
}

/// From the end of the file to its beginning, where HDF5 keeps the roots of all the rest.
void StagedFile::write_pages() {
  for (const auto& [page, content] : std::ranges::reverse_view(pages_)) {
    const std::uint64_t begin = page * kPageBytes;
    if (begin >= size_) continue;
    file_.write_at(begin, content.data(), std::min(kPageBytes, size_ - begin));
  }
  if (file_.size() != size_) file_.set_size(size_);
}

std::string StagedFile::commit() {
  if (is_broken()) return broken_;
  try {
    write_pages();
    pages_.clear();
    return "";
  } catch (const Error& error) {
    const bool too_much = pages_.size() * kPageBytes > most_bytes_;
    if (too_much) broken_ = std::string(error.what()) + "; too much waits to be written";
    if (too_much) pages_.clear();
    return error.what();
  }
}

}  // namespace hyperslab::io
