// SPDX-License-Identifier: Apache-2.0
#include "dataset/glob_files.hpp"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>

#include "hyperslab/core/token_columns.hpp"
#include "hyperslab/io/file_patterns.hpp"

namespace hyperslab::io {
namespace {

/// True for an array of values beside a token file.
bool is_column_file(const std::string& path) {
  const auto ends_with = [&](std::string_view column) {
    return path.ends_with("." + std::string(column) + ".npy");
  };
  return std::ranges::any_of(kTokenColumns,
                             [&](TokenColumn column) { return ends_with(dataset_of(column)); }) ||
         ends_with(kTeacherIds) || ends_with(kTeacherLogProbabilities);
}

class GlobResult {
 public:
  explicit GlobResult(const std::string& pattern)
      : status_(::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &result_)) {}
  GlobResult(const GlobResult&) = delete;
  GlobResult& operator=(const GlobResult&) = delete;
  GlobResult(GlobResult&&) = delete;
  GlobResult& operator=(GlobResult&&) = delete;
  ~GlobResult() { ::globfree(&result_); }

  [[nodiscard]] std::vector<std::string> sorted() const {
    if (status_ != 0) return {};
    std::vector<std::string> paths(result_.gl_pathv, result_.gl_pathv + result_.gl_pathc);
    std::erase_if(paths, is_column_file);
    std::ranges::sort(paths);  // by bytes: glob's own order follows the locale
    return paths;
  }

 private:
  glob_t result_{};
  int status_;
};

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

bool is_pattern(const std::string& path) { return path.find_first_of("*?[{~") != path.npos; }

}  // namespace

bool names_files(const std::string& path) {
  return exists(path) || (is_pattern(path) && !GlobResult(path).sorted().empty());
}

std::string pattern_below(const std::string& folder, const std::string& path) {
  if (folder.empty()) return path;
  const std::string end = folder.ends_with('/') ? path : "/" + path;
  if (exists(folder + end) || !is_pattern(path)) return folder + end;
  std::string literal;
  for (const char c : folder) {
    if (std::string_view("*?[]{},~\\").find(c) != std::string_view::npos) literal += '\\';
    literal += c;
  }
  return literal + end;
}

std::vector<std::string> glob_files(const std::string& path, const FileKind& kind) {
  if (exists(path) || !is_pattern(path)) return {path};
  std::vector<std::string> paths = GlobResult(path).sorted();
  if (paths.empty()) {
    fail_file(path, "files that match this pattern", "none",
              "correct the path; relative paths begin at the working directory", kind);
  }
  return paths;
}

}  // namespace hyperslab::io
