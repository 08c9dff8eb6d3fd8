// SPDX-License-Identifier: Apache-2.0
// HDF5 lays out the file and closes it; the ids are then written by pwrite at the datasets'
// offsets, because HDF5 1.10 may report success on a full disk.
#include <array>
#include <cstring>
#include <span>

#include "dataset/token_writer.hpp"
#include "hdf5/handles.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

using hdf5::Handle;
constexpr std::int64_t kMetadataBytes = 64 << 10;  // far more than four datasets need
constexpr std::size_t kBlockBytes = 1 << 20;

[[noreturn]] void fail_layout(const std::string& path) {
  throw Error(ExitCode::storage, "cannot write '" + path + "': HDF5: " + hdf5::last_error() +
                                     "; give a path on other storage");
}

/// Makes a contiguous dataset whose space exists at once; returns its byte offset, 0 if empty.
std::int64_t lay_out(const Handle& file, const char* name, hid_t type, std::int64_t count,
                     const std::string& path) {
  const auto extent = static_cast<hsize_t>(count);
  const Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  const Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_layout(properties.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER);
  Handle dataset(
      H5Dcreate2(file.get(), name, type, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
      H5Dclose);
  if (!dataset) fail_layout(path);
  const haddr_t offset = count == 0 ? 0 : H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF || dataset.close() < 0) fail_layout(path);
  return static_cast<std::int64_t>(offset);
}

/// Collects the first token of every document and writes them block by block.
class DocumentStarts {
 public:
  DocumentStarts(AtomicFile& file, std::int64_t offset, std::int32_t end_of_text)
      : file_(file), offset_(offset), end_of_text_(end_of_text) {}

  template <class T>
  void scan(std::span<const std::byte> ids) {
    for (std::size_t i = 0; i < ids.size(); i += sizeof(T), ++index_) {
      T id;
      std::memcpy(&id, ids.data() + i, sizeof(T));
      if (begins_) starts_.push_back(index_);
      begins_ = static_cast<std::int32_t>(id) == end_of_text_;
    }
    flush();
  }

 private:
  void flush() {
    const auto bytes = std::as_bytes(std::span(starts_));
    file_.write_at(offset_, bytes);
    offset_ += static_cast<std::int64_t>(bytes.size());
    starts_.clear();
  }

  AtomicFile& file_;
  std::int64_t offset_;
  std::int32_t end_of_text_;
  std::int64_t index_ = 0;
  bool begins_ = true;
  std::vector<std::int64_t> starts_;
};

/// Copies all bytes of a temporary file to an offset of another.
void copy_bytes(const AtomicFile& from, std::int64_t bytes, AtomicFile& to, std::int64_t offset) {
  std::vector<std::byte> block(kBlockBytes);
  for (std::int64_t done = 0; done < bytes;) {
    const std::size_t got = from.read_at(done, block);
    require(got > 0, "token writer: the temporary file of the mask has shrunk");
    to.write_at(offset + done, std::span<const std::byte>(block.data(), got));
    done += static_cast<std::int64_t>(got);
  }
}

}  // namespace

void TokenWriter::finish_hdf5() {
  AtomicFile out(path_);
  const std::int64_t id_bytes = count_ * width_;
  out.reserve(id_bytes + (mask_ ? count_ : 0) + 8 * documents_ + kMetadataBytes);
  Handle layout = hdf5::create_file(out.temporary());
  if (!layout) fail_layout(path_);
  const hid_t type = width_ == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
  const std::int64_t ids_at = lay_out(layout, "tokens", type, count_, path_);
  const std::int64_t starts_at = lay_out(layout, "documents", H5T_STD_I64LE, documents_, path_);
  const std::int64_t mask_at =
      mask_ ? lay_out(layout, "loss_mask", H5T_STD_U8LE, count_, path_) : 0;
  const std::array record = {vocabulary_.ids, static_cast<std::int64_t>(vocabulary_.fingerprint),
                             std::int64_t{vocabulary_.end}};
  const bool has_record = vocabulary_.fingerprint != 0;
  const std::int64_t record_at =
      has_record ? lay_out(layout, "vocabulary", H5T_STD_I64LE, std::ssize(record), path_) : 0;
  if (layout.close() < 0) fail_layout(path_);

  if (has_record) out.write_at(record_at, std::as_bytes(std::span(record)));
  write_ids(out, ids_at, starts_at);
  if (mask_) copy_bytes(*mask_, count_, out, mask_at);
  out.commit();
}

/// Copies the ids, and writes the starts of documents that they have.
void TokenWriter::write_ids(AtomicFile& out, std::int64_t ids_at, std::int64_t starts_at) {
  DocumentStarts starts(out, starts_at, vocabulary_.end);
  if (mask_) out.write_at(starts_at, std::as_bytes(std::span(starts_)));
  std::vector<std::byte> block(kBlockBytes);
  for (std::int64_t done = 0; done < count_ * width_;) {
    const std::size_t got = file_.read_at(done, block);
    require(got > 0, "token writer: the temporary file of ids has shrunk");
    const std::span<const std::byte> ids(block.data(), got);
    out.write_at(ids_at + done, ids);
    if (!mask_) width_ == 2 ? starts.scan<std::uint16_t>(ids) : starts.scan<std::uint32_t>(ids);
    done += static_cast<std::int64_t>(got);
  }
}

}  // namespace hyperslab::io
