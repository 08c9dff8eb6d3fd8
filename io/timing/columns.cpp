// SPDX-License-Identifier: Apache-2.0
#include "timing/columns.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

#include "hdf5/attributes.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

using hdf5::Handle;

constexpr hsize_t kChunkRows = 512;
constexpr hsize_t kWideChunkValues = 16384;  // about, where a row has several

Handle string_type() {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

Handle copy_of(hid_t type) { return {H5Tcopy(type), H5Tclose}; }

Handle type_of(const Column& column, bool in_memory) {
  if (std::holds_alternative<std::vector<double>>(column.values)) {
    return copy_of(in_memory ? H5T_NATIVE_DOUBLE : H5T_IEEE_F64LE);
  }
  if (std::holds_alternative<std::vector<std::int64_t>>(column.values)) {
    return copy_of(in_memory ? H5T_NATIVE_INT64 : H5T_STD_I64LE);
  }
  if (std::holds_alternative<std::vector<float>>(column.values)) {
    return copy_of(in_memory ? H5T_NATIVE_FLOAT : H5T_IEEE_F32LE);
  }
  return string_type();
}

int dimensions_of(const Column& column) { return column.width == 0 ? 1 : 2; }

/// Rows that are not in the file yet.
std::size_t size_of(const Column& column) {
  const std::size_t values = std::visit([](const auto& all) { return all.size(); }, column.values);
  return values / std::max<std::size_t>(1, column.width);
}

Handle create(const Handle& group, const Column& column) {
  const int dimensions = dimensions_of(column);
  const hsize_t wide_rows = kWideChunkValues / std::max<hsize_t>(1, column.width);
  const std::array<hsize_t, 2> none = {0, column.width};
  const std::array<hsize_t, 2> most = {H5S_UNLIMITED, column.width};
  const std::array<hsize_t, 2> chunk = {
      dimensions == 1 ? kChunkRows : std::clamp<hsize_t>(wide_rows, 1, kChunkRows), column.width};
  const Handle space(H5Screate_simple(dimensions, none.data(), most.data()), H5Sclose);
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(creation.get(), dimensions, chunk.data());
  return {H5Dcreate2(group.get(), column.name.c_str(), type_of(column, false).get(), space.get(),
                     H5P_DEFAULT, creation.get(), H5P_DEFAULT),
          H5Dclose};
}

/// Writes the values after the first `rows` rows; false if HDF5 failed.
bool append(const Handle& dataset, const Column& column, hsize_t rows) {
  const std::array<hsize_t, 2> count = {size_of(column), column.width};
  const std::array<hsize_t, 2> total = {rows + count[0], column.width};
  const std::array<hsize_t, 2> first = {rows, 0};
  if (H5Dset_extent(dataset.get(), total.data()) < 0) return false;
  const Handle file_space(H5Dget_space(dataset.get()), H5Sclose);
  const Handle memory_space(H5Screate_simple(dimensions_of(column), count.data(), nullptr),
                            H5Sclose);
  if (H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, first.data(), nullptr, count.data(),
                          nullptr) < 0) {
    return false;
  }
  const Handle type = type_of(column, true);
  const auto write = [&](const void* data) {
    return H5Dwrite(dataset.get(), type.get(), memory_space.get(), file_space.get(), H5P_DEFAULT,
                    data) >= 0;
  };
  return std::visit(
      [&](const auto& values) {
        using Value = typename std::decay_t<decltype(values)>::value_type;
        if constexpr (std::is_same_v<Value, std::string>) {
          std::vector<const char*> texts;
          texts.reserve(values.size());
          for (const std::string& text : values) texts.push_back(text.c_str());
          return write(texts.data());
        } else {
          return write(values.data());
        }
      },
      column.values);
}

}  // namespace

Table::Table(const Handle& file, const std::string& path, const std::string& group,
             std::vector<Column> columns)
    : where_(path + ": /" + group), columns_(std::move(columns)) {
  const Handle made(H5Gcreate2(file.get(), group.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                    H5Gclose);
  hdf5::check(static_cast<bool>(made), ExitCode::storage, where_);
  for (const Column& column : columns_) {
    datasets_.push_back(create(made, column));
    hdf5::check(static_cast<bool>(datasets_.back()), ExitCode::storage, where_ + "/" + column.name);
    if (!column.units.empty()) hdf5::set_attribute(datasets_.back(), "units", column.units);
    hdf5::set_attribute(datasets_.back(), "description", column.description);
  }
}

void Table::reserve(std::size_t rows) {
  for (Column& column : columns_) {
    std::visit([rows](auto& values) { values.reserve(rows); }, column.values);
  }
}

void Table::push_row(std::size_t column, std::span<const double> row) {
  Column& wide = columns_[column];
  require(row.size() == wide.width, "a row of another width than its column");
  auto& values = std::get<std::vector<float>>(wide.values);
  for (const double value : row) values.push_back(static_cast<float>(value));
}

void Table::set_attribute(std::size_t column, const char* name, std::int64_t value) {
  hdf5::set_attribute(datasets_[column], name, value);
}

std::size_t Table::pending() const { return size_of(columns_.front()); }

void Table::write() {
  const std::size_t count = pending();
  if (count == 0) return;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    hdf5::check(append(datasets_[i], columns_[i], rows_), ExitCode::storage,
                where_ + "/" + columns_[i].name + ": writing failed");
  }
  rows_ += count;
  for (Column& column : columns_) std::visit([](auto& values) { values.clear(); }, column.values);
}

}  // namespace hyperslab::io
