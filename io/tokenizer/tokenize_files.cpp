// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <utility>

#include "dataset/token_writer.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/io/vocabulary_record.hpp"
#include "run_jobs.hpp"
#include "tokenizer/cuts.hpp"
#include "tokenizer/document_reader.hpp"
#include "tokenizer/json_lines.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kBatchBytes = 8 << 20;

/// Text that is encoded on all threads at once and written in its order.
class Batch {
 public:
  /// `end`: of each document; -1: none. `joins`: documents without one may follow each other.
  Batch(const Tokenizer& tokenizer, TokenWriter& writer, bool special_tokens, std::int32_t end,
        bool joins)
      : tokenizer_(tokenizer), writer_(writer), may_follow_(joins || end >= 0) {
    if (special_tokens) around_ = tokenizer.text_template();
    std::erase(around_.before, end);  // the document before has one
    std::erase(around_.after, end);
    if (end >= 0) around_.after.push_back(end);
  }

  void add_text(std::string_view text, TextPlace place) {
    if (!text_.empty() && text_.size() + text.size() > kBatchBytes) write();
    text_ += text;
    ends_.push_back({text_.size(), place, nullptr});
  }
  void begin_document() {
    if (has_document_ && !may_follow_) fail_without_end();
    has_document_ = true;
    ends_.push_back({text_.size(), {}, &around_.before});
  }
  void end_document() { ends_.push_back({text_.size(), {}, &around_.after}); }

  /// Gives the last offset at which a text may be cut for the tokenizer.
  [[nodiscard]] LastCut cut_of() const {
    return
        [this](std::string_view text, std::size_t from) { return tokenizer_.last_cut(text, from); };
  }

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
  using Ids = std::vector<std::int32_t>;
  struct End {
    std::size_t at;
    TextPlace place;    ///< place of the text before it
    const Ids* follow;  ///< ids that come after it, or null
  };
  /// Text, or ids, for one thread.
  struct Item {
    std::string_view text;
    TextPlace place;
    const Ids* ids;
  };
  using Part = std::vector<Item>;

  [[nodiscard]] std::vector<Part> cut() const {
    std::vector<Part> parts(1);
    std::size_t bytes = 0;
    std::size_t begin = 0;
    for (const End& end : ends_) {
      const auto text = std::string_view(text_).substr(begin, end.at - begin);
      begin = end.at;
      TextPlace place = end.place;
      for (const std::string_view range : cut_into_parts(text, kPartBytes, cut_of())) {
        if (bytes + range.size() > kPartBytes && !parts.back().empty()) {
          parts.emplace_back();
          bytes = 0;
        }
        parts.back().push_back({range, std::exchange(place, TextPlace::inside), nullptr});
        bytes += range.size();
      }
      if (end.follow != nullptr) parts.back().push_back({{}, {}, end.follow});
    }
    return parts;
  }

  [[nodiscard]] Ids encode(const Part& part) const {
    Ids ids;
    for (const Item& item : part) {
      const Ids more =
          item.ids != nullptr ? *item.ids : tokenizer_.encode_part(item.text, item.place);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
  }

  [[noreturn]] static void fail_without_end() {
    throw Error(ExitCode::data,
                "tokenize: expected an end of text between documents, found a vocabulary whose "
                "files name none; name it with --end-of-text TOKEN, or join documents with "
                "--no-end-of-text");
  }

  const Tokenizer& tokenizer_;
  TokenWriter& writer_;
  bool may_follow_;            ///< a document may come after another
  bool has_document_ = false;  ///< one has begun
  TextTemplate around_;        ///< ids around each document
  std::string text_;
  std::vector<End> ends_;
};

/// Documents without text are left out, but every file gives at least an end of text.
void append_file(const std::string& path, const DocumentSeparator& separator, Batch& batch) {
  DocumentReader reader(path, separator, batch.cut_of());
  bool open = true;  // something is to be ended at the end of the file
  bool has_text = false;
  for (DocumentReader::Chunk chunk; !chunk.ends_file;) {
    chunk = reader.next();
    const bool ends_file = chunk.ends_file && open;
    if (!has_text && (!chunk.text.empty() || ends_file)) batch.begin_document();
    batch.add_text(chunk.text, has_text ? TextPlace::inside : TextPlace::start);
    has_text = has_text || !chunk.text.empty();
    if (has_text) open = true;
    if (!(chunk.ends_document && has_text) && !(chunk.ends_file && open)) continue;
    batch.end_document();
    has_text = open = false;
  }
}

/// Appends a document a line. Documents without text are left out as in append_file().
void append_json_lines(const std::string& path, const JsonLines& format, Batch& batch) {
  JsonLinesReader reader(path, format);
  bool open = true;
  std::vector<std::string> texts;
  const auto add = [&](const std::string& text) {
    batch.begin_document();
    batch.add_text(text, TextPlace::start);
    batch.end_document();
    open = false;
  };
  while (reader.next(texts)) {
    for (const std::string& text : texts) {
      if (!text.empty()) add(text);
    }
  }
  if (open) add({});
}

}  // namespace

std::int64_t tokenize_files(const Tokenizer& tokenizer, std::span<const std::string> inputs,
                            const std::string& output, const DocumentSeparator& separator,
                            bool special_tokens, const JsonLines& format,
                            std::optional<std::int32_t> end) {
  if (inputs.empty()) {
    throw Error(ExitCode::usage,
                "tokenize: expected at least one text file, found none; use --input");
  }
  refuse_other_formats({inputs.begin(), inputs.end()});
  const std::int32_t end_id = end.value_or(tokenizer.end_of_text());
  TokenWriter writer(output, record_of(tokenizer, end_id));
  Batch batch(tokenizer, writer, special_tokens, end_id, end.has_value());
  for (const std::string& path : without_empty_files(inputs)) {
    if (is_json_lines(path, format)) {
      append_json_lines(path, format, batch);
    } else {
      warn_of_json(path);
      append_file(path, separator, batch);
    }
  }
  batch.write();
  return writer.finish();
}

}  // namespace hyperslab::io
