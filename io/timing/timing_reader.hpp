// SPDX-License-Identifier: Apache-2.0
// Reader of a rank's timing file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hdf5/handles.hpp"

namespace hyperslab::io {

/// Columns of a table by name; rows are those that all columns have.
class TableReader {
 public:
  /// Without rows if the file has no such table.
  TableReader(const hdf5::Handle& file, std::string path, std::string table);
  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] std::vector<double> numbers(const std::string& column) const;
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& column) const;
  [[nodiscard]] std::vector<std::string> texts(const std::string& column) const;

 private:
  [[nodiscard]] hdf5::Handle open(const std::string& column) const;
  const hdf5::Handle& file_;
  std::string path_;
  std::string table_;
  std::size_t rows_ = 0;
};

/// A rank's timing file. Throws Error(data) naming it if it is damaged or of another kind.
class TimingReader {
 public:
  explicit TimingReader(std::string path);
  [[nodiscard]] std::int64_t integer(const char* attribute) const;
  [[nodiscard]] std::string text(const char* attribute) const;
  [[nodiscard]] TableReader table(const std::string& name) const { return {file_, path_, name}; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  hdf5::Handle file_;
};

}  // namespace hyperslab::io
