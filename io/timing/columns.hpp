// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "hdf5/handles.hpp"

namespace hyperslab::io {

/// A column and the values that are not in the file yet. Units and description become attributes of
/// its dataset.
struct Column {
  std::string name;
  std::string units;  ///< "s", "bytes", "1" for numbers of things; empty: texts have none
  std::string description;
  std::variant<std::vector<double>, std::vector<std::int64_t>, std::vector<std::string>,
               std::vector<float>>
      values;
  std::size_t width = 0;  ///< values of a row, in a dataset of two dimensions; 0: one, of one
};

/// A group of datasets of equally many rows that grow. Values are pushed into all columns and
/// appended to the file together.
class Table {
 public:
  /// Makes the group and empty datasets. Throws Error(storage) naming `path`, the file.
  Table(const hdf5::Handle& file, const std::string& path, const std::string& group,
        std::vector<Column> columns);

  /// Memory for so many pending rows.
  void reserve(std::size_t rows);
  template <class T>
  void push(std::size_t column, T value) {
    std::get<std::vector<T>>(columns_[column].values).push_back(std::move(value));
  }
  /// A row of a wide column, rounded to f32; it must have the width of the column.
  void push_row(std::size_t column, std::span<const double> row);
  /// Numbers beside units and description of a column.
  void set_attribute(std::size_t column, const char* name, std::int64_t value);
  [[nodiscard]] std::size_t pending() const;
  /// Appends pending rows; throws Error(storage).
  void write();

 private:
  std::string where_;  ///< file and group, for messages
  std::vector<Column> columns_;
  std::vector<hdf5::Handle> datasets_;
  hsize_t rows_ = 0;
};

}  // namespace hyperslab::io
