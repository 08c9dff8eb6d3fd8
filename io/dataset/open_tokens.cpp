// SPDX-License-Identifier: Apache-2.0
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>

#include "dataset/shard.hpp"
#include "dataset/synthetic.hpp"
#include "dataset/token_files.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {
namespace {

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
    std::ranges::sort(paths);  // by bytes: glob's own order follows the locale
    return paths;
  }

 private:
  glob_t result_{};
  int status_;
};

std::vector<std::string> expanded(const std::string& path) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists || path.find_first_of("*?[{~") == path.npos) return {path};
  std::vector<std::string> paths = GlobResult(path).sorted();
  if (paths.empty()) {
    fail_file(path, "files that match this pattern", "none",
              "correct the path in the deck; relative paths begin at the working directory");
  }
  return paths;
}

}  // namespace

std::unique_ptr<TokenSource> open_tokens(const std::vector<std::string>& paths, RawIds raw_ids,
                                         std::int64_t vocabulary, std::uint64_t seed,
                                         bool loss_mask) {
  require(vocabulary > 0 && vocabulary <= (1LL << 31), "tokens need a vocabulary");
  if (paths == std::vector<std::string>{"synthetic"}) {
    if (loss_mask) {
      throw Error(
          ExitCode::data,
          "synthetic tokens: expected a loss mask, found none; set data.loss_mask to false");
    }
    return std::make_unique<Synthetic>(vocabulary, seed);
  }
  if (paths.empty()) {
    throw Error(
        ExitCode::data,
        "no token files: expected paths, patterns or 'synthetic' in the deck's data section, "
        "found an empty list; name the files");
  }
  const IdType raw = raw_ids == RawIds::uint16 ? IdType::u16 : IdType::u32;
  std::vector<Shard> shards;
  for (const std::string& path : paths) {
    if (path == "synthetic") {
      throw Error(
          ExitCode::data,
          "synthetic tokens: expected 'synthetic' alone, found it beside files; remove one");
    }
    for (const std::string& file : expanded(path)) {
      shards.push_back(open_shard(file, raw, loss_mask));
    }
  }
  return std::make_unique<TokenFiles>(std::move(shards), vocabulary);
}

}  // namespace hyperslab::io
