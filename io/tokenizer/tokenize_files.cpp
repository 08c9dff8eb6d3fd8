// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>

#include "checkpoint/workers.hpp"
#include "dataset/token_writer.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/cuts.hpp"
#include "tokenizer/document_reader.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kBatchBytes = 8 << 20;
constexpr std::size_t kPartBytes = 256 << 10;

/// Text that is encoded on all threads at once and written in its order.
class Batch {
 public:
  Batch(const Tokenizer& tokenizer, TokenWriter& writer) : tokenizer_(tokenizer), writer_(writer) {}

  void add_text(std::string_view text) {
    if (!text_.empty() && text_.size() + text.size() > kBatchBytes) write();
    text_ += text;
    ends_.push_back({text_.size(), false});
  }
  void add_end_of_text() { ends_.push_back({text_.size(), true}); }

  void write() {
    const std::vector<Part> parts = cut();
    std::vector<std::vector<std::int32_t>> ids(parts.size());
    run_jobs(parts.size(), omp_get_max_threads(),
             [&](std::size_t i) { ids[i] = encode(parts[i]); });
    for (const auto& part : ids) writer_.append(part);
    text_.clear();
    ends_.clear();
  }

 private:
  struct End {
    std::size_t at;
    bool of_text;  ///< an end-of-text id follows
  };
  /// Texts for one thread, each with what follows it.
  struct Item {
    std::string_view text;
    bool ends_text;
  };
  using Part = std::vector<Item>;

  [[nodiscard]] std::vector<Part> cut() const {
    std::vector<Part> parts(1);
    std::size_t bytes = 0;
    std::size_t begin = 0;
    for (const End& end : ends_) {
      const auto text = std::string_view(text_).substr(begin, end.at - begin);
      begin = end.at;
      for (const std::string_view piece : cut_into_parts(text, kPartBytes)) {
        if (bytes + piece.size() > kPartBytes && !parts.back().empty()) {
          parts.emplace_back();
          bytes = 0;
        }
        parts.back().push_back({piece, false});
        bytes += piece.size();
      }
      if (end.of_text) parts.back().push_back({{}, true});
    }
    return parts;
  }

  [[nodiscard]] std::vector<std::int32_t> encode(const Part& part) const {
    std::vector<std::int32_t> ids;
    for (const Item& item : part) {
      if (item.ends_text) {
        ids.push_back(tokenizer_.end_of_text());
        continue;
      }
      const auto more = tokenizer_.encode(item.text);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
  }

  const Tokenizer& tokenizer_;
  TokenWriter& writer_;
  std::string text_;
  std::vector<End> ends_;
};

/// Documents without text are left out, but every file gives at least an end of text.
void append_file(const Tokenizer& tokenizer, const std::string& path,
                 const DocumentSeparator& separator, Batch& batch) {
  DocumentReader reader(path, separator);
  bool open = true;  // something is to be ended at the end of the file
  bool has_text = false;
  for (DocumentReader::Piece piece; !piece.ends_file;) {
    piece = reader.next();
    batch.add_text(piece.text);
    has_text = has_text || !piece.text.empty();
    if (has_text) open = true;
    if (!(piece.ends_document && has_text) && !(piece.ends_file && open)) continue;
    if (tokenizer.end_of_text() >= 0) batch.add_end_of_text();
    has_text = open = false;
  }
}

}  // namespace

std::int64_t tokenize_files(const Tokenizer& tokenizer, std::span<const std::string> inputs,
                            const std::string& output, const DocumentSeparator& separator) {
  if (inputs.empty()) {
    throw Error(ExitCode::usage,
                "tokenize: wanted at least one text file, found none; use --input");
  }
  TokenWriter writer(output, tokenizer.vocabulary(), tokenizer.end_of_text());
  Batch batch(tokenizer, writer);
  for (const std::string& path : inputs) append_file(tokenizer, path, separator, batch);
  batch.write();
  return writer.finish();
}

}  // namespace hyperslab::io
