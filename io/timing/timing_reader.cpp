// SPDX-License-Identifier: Apache-2.0
#include "timing/timing_reader.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace hyperslab::io {

using hdf5::Handle;

namespace {

Handle open_timings(const std::string& path) {
  hdf5::be_quiet();
  Handle file = hdf5::open_file(path);
  hdf5::check(static_cast<bool>(file), ExitCode::data, path + ": cannot read these timings");
  return file;
}

std::size_t rows_of(const Handle& dataset) {
  const Handle space(H5Dget_space(dataset.get()), H5Sclose);
  return static_cast<std::size_t>(std::max<hssize_t>(0, H5Sget_simple_extent_npoints(space.get())));
}

/// Reads the first rows of a column.
bool read(const Handle& dataset, hid_t type, hsize_t rows, void* values) {
  const hsize_t none = 0;
  const Handle in_memory(H5Screate_simple(1, &rows, nullptr), H5Sclose);
  const Handle in_file(H5Dget_space(dataset.get()), H5Sclose);
  return H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &none, nullptr, &rows, nullptr) >= 0 &&
         H5Dread(dataset.get(), type, in_memory.get(), in_file.get(), H5P_DEFAULT, values) >= 0;
}

}  // namespace

TableReader::TableReader(const Handle& file, std::string path, std::string table)
    : file_(file), path_(std::move(path)), table_(std::move(table)) {
  if (H5Lexists(file.get(), table_.c_str(), H5P_DEFAULT) <= 0) return;
  const Handle group(H5Gopen2(file.get(), table_.c_str(), H5P_DEFAULT), H5Gclose);
  hdf5::check(static_cast<bool>(group), ExitCode::data, path_ + ": /" + table_);
  // A run that was killed while it wrote can leave columns of unequal length.
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* all) -> herr_t {
    static_cast<std::vector<std::string>*>(all)->emplace_back(name);
    return 0;
  };
  const herr_t listed =
      H5Literate(group.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names);
  hdf5::check(listed >= 0, ExitCode::data, path_ + ": /" + table_);
  rows_ = names.empty() ? 0 : std::numeric_limits<std::size_t>::max();
  for (const std::string& name : names) rows_ = std::min(rows_, rows_of(open(name)));
}

Handle TableReader::open(const std::string& column) const {
  const std::string name = table_ + "/" + column;
  Handle dataset(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
  hdf5::check(static_cast<bool>(dataset), ExitCode::data, path_ + ": /" + name);
  return dataset;
}

std::vector<double> TableReader::numbers(const std::string& column) const {
  std::vector<double> values(rows_);
  if (rows_ == 0) return values;
  hdf5::check(read(open(column), H5T_NATIVE_DOUBLE, rows_, values.data()), ExitCode::data,
              path_ + ": /" + table_ + "/" + column);
  return values;
}

std::vector<std::int64_t> TableReader::integers(const std::string& column) const {
  std::vector<std::int64_t> values(rows_);
  if (rows_ == 0) return values;
  hdf5::check(read(open(column), H5T_NATIVE_INT64, rows_, values.data()), ExitCode::data,
              path_ + ": /" + table_ + "/" + column);
  return values;
}

std::vector<std::string> TableReader::texts(const std::string& column) const {
  if (rows_ == 0) return {};
  const Handle dataset = open(column);
  std::vector<char*> values(rows_);
  const Handle type(H5Dget_type(dataset.get()), H5Tclose);
  hdf5::check(read(dataset, type.get(), rows_, values.data()), ExitCode::data,
              path_ + ": /" + table_ + "/" + column);
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const char* value : values) texts.emplace_back(value == nullptr ? "" : value);
  for (char* value : values) H5free_memory(value);
  return texts;
}

TimingReader::TimingReader(std::string path) : path_(std::move(path)), file_(open_timings(path_)) {
  if (text("format") == "hyperslab timing") return;
  throw Error(ExitCode::data, path_ + ": these are no timings of hyperslab");
}

std::int64_t TimingReader::integer(const char* attribute) const {
  const Handle found(H5Aopen(file_.get(), attribute, H5P_DEFAULT), H5Aclose);
  std::int64_t value = 0;
  hdf5::check(found && H5Aread(found.get(), H5T_NATIVE_INT64, &value) >= 0, ExitCode::data,
              path_ + ": attribute " + attribute);
  return value;
}

std::string TimingReader::text(const char* attribute) const {
  const Handle found(H5Aopen(file_.get(), attribute, H5P_DEFAULT), H5Aclose);
  char* value = nullptr;
  const Handle type(found ? H5Aget_type(found.get()) : H5I_INVALID_HID, H5Tclose);
  hdf5::check(found && H5Aread(found.get(), type.get(), &value) >= 0, ExitCode::data,
              path_ + ": attribute " + attribute);
  std::string text = value == nullptr ? "" : value;
  H5free_memory(value);
  return text;
}

}  // namespace hyperslab::io
