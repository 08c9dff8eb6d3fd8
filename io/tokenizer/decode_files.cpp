// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>

#include "files/atomic_file.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/io/vocabulary_record.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kChunkTokens = 1 << 18;

/// A file that appears when it is complete, or standard output.
class TextOutput {
 public:
  explicit TextOutput(const std::string& path) {
    if (!path.empty()) file_.emplace(path);
  }
  void append(const std::string& text) {
    if (file_) return file_->append(text);
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) fail();
  }
  void finish() {
    if (file_) return file_->commit();
    if (std::fflush(stdout) != 0) fail();
  }

 private:
  [[noreturn]] static void fail() { fail_write("standard output", errno); }
  std::optional<AtomicFile> file_;
};

/// Text with the separator in place of each end-of-text id, once it is clear that more follows.
class Decoder {
 public:
  /// `end`: the id between documents; -1: none.
  Decoder(const Tokenizer& tokenizer, const DocumentSeparator& separator, std::int32_t end)
      : tokenizer_(tokenizer),
        separator_(separator),
        end_(end),
        around_(tokenizer.text_template()),
        document_(tokenizer) {}

  void append(std::span<const std::int32_t> ids, std::string& out) {
    for (const std::int32_t id : ids) {
      if (ended_) append_separator(out);
      ended_ = id == end_;
      if (ended_) document_ = TextDecoder(tokenizer_);
      if (!ended_ && !is_added(id)) append_text(document_.next(id), out);
    }
  }

 private:
  /// True if the id stands around documents, not in their text.
  [[nodiscard]] bool is_added(std::int32_t id) const {
    return std::ranges::find(around_.before, id) != around_.before.end() ||
           std::ranges::find(around_.after, id) != around_.after.end();
  }
  void append_text(const std::string& text, std::string& out) {
    if (text.empty()) return;
    out += text;
    line_begins_ = text.back() == '\n';
  }
  void append_separator(std::string& out) {
    if (separator_.kind == DocumentSeparator::Kind::text) return append_text(separator_.text, out);
    if (!line_begins_) out += '\n';
    append_text(separator_.kind == DocumentSeparator::Kind::blank_lines ? "\n" : "<|endoftext|>\n",
                out);
  }

  const Tokenizer& tokenizer_;
  const DocumentSeparator& separator_;
  std::int32_t end_;
  TextTemplate around_;
  TextDecoder document_;
  bool ended_ = false;       ///< an end-of-text id was last
  bool line_begins_ = true;  ///< at the end of the text
};

}  // namespace

std::int64_t decode_files(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                          const std::string& output, const DocumentSeparator& separator) {
  const auto tokens = open_tokens(inputs, RawIds::uint16, tokenizer.vocabulary(), 0);
  TextOutput file(output);
  const auto records = tokens->vocabularies();
  require_same_vocabulary(*tokens, tokenizer, "--vocab");
  Decoder decoder(tokenizer, separator,
                  records.empty() ? tokenizer.end_of_text() : records.front().second.end);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(tokens->size(), kChunkTokens)));
  std::string text;
  for (std::int64_t done = 0; done < tokens->size();) {
    const auto count = std::min(kChunkTokens, tokens->size() - done);
    const auto chunk = std::span(ids).first(static_cast<std::size_t>(count));
    tokens->read(done, chunk);
    text.clear();
    decoder.append(chunk, text);
    file.append(text);
    done += count;
  }
  file.finish();
  return tokens->size();
}

}  // namespace hyperslab::io
