// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/json_lines.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "tokenizer/cuts.hpp"

namespace hyperslab::io {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ExitCode::data, path + what);
}

}  // namespace

bool is_json_lines(const std::string& path, const JsonLines& format) {
  return format.all || path.ends_with(".jsonl");
}

void warn_of_json(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::ifstream file(path, std::ios::binary);
  std::string line(kPartBytes, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(std::min(static_cast<std::size_t>(file.gcount()), line.find('\n')));
  if (!line.starts_with('{') || !nlohmann::json::accept(line)) return;
  log::warn(
      fmt::format("{}: its first line is a JSON object, and the file is taken as text; give "
                  "--jsonl if it holds JSON lines",
                  path));
}

void refuse_other_formats(const std::vector<std::string>& inputs) {
  for (const std::string& path : inputs) {
    for (const char* suffix : {".gz", ".zst", ".xz", ".bz2"}) {
      if (!path.ends_with(suffix)) continue;
      fail(path,
           ": expected text or JSON lines, found the name of a compressed file; decompress "
           "it into a pipe, as in: zcat FILE.jsonl.gz | hyperslab tokenize --jsonl --input - "
           "...");
    }
    if (path.ends_with(".parquet")) {
      fail(path,
           ": expected text or JSON lines, found the name of a Parquet file; convert it: "
           "jobs/data/parquet_text.py --jsonl FILE | hyperslab tokenize --jsonl --input - "
           "...");
    }
  }
}

JsonLinesReader::JsonLinesReader(const std::string& path, const JsonLines& format, std::size_t most)
    : key_(format.text_key),
      batches_(path, {.skip_broken = format.skip_broken, .wanted = "a text", .most_bytes = most}) {}

bool JsonLinesReader::next(std::vector<std::string>& texts) {
  texts.clear();
  if (!batches_.next(lines_)) return false;
  std::vector<JsonText> found(lines_.size());
  LineBatches::for_each(lines_, [&](std::size_t i) { found[i] = json_text(lines_[i], key_); });
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (batches_.take(lines_, i, found[i].problem)) texts.push_back(std::move(found[i].text));
  }
  return true;
}

}  // namespace hyperslab::io
