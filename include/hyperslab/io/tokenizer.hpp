// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/io/text_ends.hpp"

namespace hyperslab::io {

/// Special tokens that a vocabulary's files put around every text.
struct TextTemplate {
  std::vector<std::int32_t> before;  ///< Llama 3: <|begin_of_text|>
  std::vector<std::int32_t> after;
};

/// Ids of the tokens that a vocabulary's files name; -1: none.
struct NamedTokens {
  std::int32_t bos = -1;  ///< that begins a text
  std::int32_t eos = -1;  ///< that ends one
  std::int32_t pad = -1;  ///< that fills up a row
};

/// A special token that stands for itself where no text names it.
struct SpecialToken {
  std::int32_t id = -1;
  bool takes_before = false;  ///< in a parsed text: with the white space before it (lstrip)
  bool takes_after = false;   ///< and after it (rstrip)
};

/// Position of a part of a text.
enum class TextPlace : std::uint8_t {
  start,        ///< the text begins with it
  after_token,  ///< a special token that the text names stands before it
  inside,       ///< more text stands before it
};

/// Text to token ids and back. Threads may use one at the same time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  /// A whole text, without the special tokens of text_template().
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// A part of a text: some vocabularies put a space before a text, or also after special tokens.
  [[nodiscard]] virtual std::vector<std::int32_t> encode_part(std::string_view text,
                                                              TextPlace /*place*/) const {
    return encode(text);
  }
  /// The last offset in [from, text.size()) at which `text` may be cut: encode_part() of the text
  /// before and, as TextPlace::inside, of the text after give the ids of the whole, whatever
  /// follows it. npos if there is none. `from` is at least 2.
  [[nodiscard]] virtual std::size_t last_cut(std::string_view text, std::size_t from) const;
  /// The bytes of one id inside a text; ids outside the vocabulary give nothing.
  [[nodiscard]] virtual std::string decode(std::int32_t id) const = 0;
  /// The bytes of one id that begins a text, without the space that encode() puts before texts.
  [[nodiscard]] virtual std::string decode_first(std::int32_t id) const { return decode(id); }
  /// True if an id is no text: the one that ends a document, text_template()'s, and those that a
  /// tokenizer.json marks as special. decode() may give them a name.
  [[nodiscard]] virtual bool is_special(std::int32_t id) const = 0;
  /// The id that stands after each document, or -1: text_ends().separator.
  [[nodiscard]] virtual std::int32_t end_of_text() const = 0;
  /// By the vocabulary's files: eos_token of tokenizer_config.json (or special_tokens_map.json),
  /// eos_token_id of generation_config.json and of config.json, one or several, in this order.
  /// Where none names one, the first of <|endoftext|>, <|end_of_text|>, </s> and <eos> that the
  /// vocabulary has, else the last token of text_template().after.
  [[nodiscard]] virtual TextEnds text_ends() const;
  [[nodiscard]] virtual TextTemplate text_template() const { return {}; }
  /// By tokenizer_config.json or special_tokens_map.json; where they name none, the first token of
  /// text_template().before begins texts and end_of_text() ends them.
  [[nodiscard]] virtual NamedTokens named_tokens() const { return {.eos = end_of_text()}; }
  /// The special token of this name, whether texts are parsed for it or not; nothing if there is
  /// none.
  [[nodiscard]] virtual std::optional<SpecialToken> special_token(std::string_view name) const;
};

/// Decodes one text, id after id.
class TextDecoder {
 public:
  /// `tokenizer` must outlive this.
  explicit TextDecoder(const Tokenizer& tokenizer, TextPlace place = TextPlace::start)
      : tokenizer_(&tokenizer), begins_(place == TextPlace::start) {}
  /// The bytes of the next id. Special tokens have their names, and before text they do not count
  /// as its beginning.
  [[nodiscard]] std::string next(std::int32_t id);

 private:
  const Tokenizer* tokenizer_;
  bool begins_;  ///< no text has come
};

/// The Unicode version whose letters and digits split patterns see.
[[nodiscard]] std::string_view unicode_version();

/// Meaning of the names of special tokens in a text.
enum class SpecialTokens : std::uint8_t {
  text,    ///< text like other text
  parsed,  ///< these tokens, as transformers takes them
};

/// `bytes`: ids 0-255 are the bytes and 256 ends a document. Else the path of a BPE: a folder with
/// Hugging Face's tokenizer.json or with vocab.json and merges.txt (also gpt2_vocab.json and
/// gpt2_merges.txt), or one of the .json files. vocab.json is byte-level with GPT-2's split
/// pattern; tokenizer.json is byte-level with a pattern of its own (matched by PCRE2), or on
/// characters with those that it does not know as bytes, which came from SentencePiece (Llama 2,
/// Mistral, Gemma, Phi-3). Special tokens that are parsed are, with a tokenizer.json, the special
/// ones of added_tokens, as the package tokenizers finds them; with vocab.json the end of text and
/// those that transformers' GPT2Tokenizer takes from tokenizer_config.json (added_tokens_decoder,
/// keys such as unk_token, additional_special_tokens) or, without an added_tokens_decoder, also
/// from special_tokens_map.json. Other added tokens are found in any case.
/// text_template() follows tokenizer.json's post_processor, without a tokenizer.json add_bos_token
/// and add_eos_token in tokenizer_config.json, as in transformers. Throws Error(data)
/// with file and position for a file that is missing or broken, another kind of tokenizer, or a
/// setting of the folder's tokenizer_config.json that gives other ids (add_prefix_space; without a
/// tokenizer.json tokenizer_class and added tokens that are not special), and for single_word of
/// special tokens that are to be parsed.
[[nodiscard]] std::unique_ptr<Tokenizer> open_tokenizer(
    const std::string& vocabulary, SpecialTokens special = SpecialTokens::text);

/// A special token of a vocabulary for which open_tokenizer() with SpecialTokens::parsed throws, as
/// it is single_word; empty: none. Throws as open_tokenizer() does.
[[nodiscard]] std::string unparsed_special_token(const std::string& vocabulary);

/// Throws Error(data) with the path `vocabulary`, which gave `tokenizer`, if it has more tokens
/// than the model has rows (`model_vocabulary`). It may have fewer: tables are padded.
void require_fits_model(const Tokenizer& tokenizer, const std::string& vocabulary,
                        std::int64_t model_vocabulary);

/// The vocabulary `bytes` as a tokenizer.json of Hugging Face's: a byte-level BPE without merges
/// whose ids are the bytes, and <|endoftext|> as id 256.
[[nodiscard]] std::string byte_tokenizer_json();

/// Separator between the documents of a text file; it belongs to neither.
struct DocumentSeparator {
  enum class Kind : std::uint8_t {
    marker_line,  ///< a line that is only `<|endoftext|>`
    blank_lines,  ///< one or more empty lines
    text,
  };
  Kind kind = Kind::marker_line;
  std::string text;  ///< separator with Kind::text
};

/// `blank-lines`, or a text in which \n, \r, \t, \\ and \xHH stand for bytes. Throws Error(usage)
/// for other escapes, an empty text and one of more than 4096 bytes.
[[nodiscard]] DocumentSeparator parse_document_separator(const std::string& option);

/// Inputs that are JSON lines: an object a line, each of which has the text of one document.
struct JsonLines {
  std::string text_key = "text";  ///< key of the text, in the outermost object
  bool all = false;               ///< every input, not only those named .jsonl
  bool skip_broken = false;       ///< lines without a text are left out and counted in a warning
};

/// True if the input `path` holds JSON lines.
[[nodiscard]] bool is_json_lines(const std::string& path, const JsonLines& format);

/// Encodes the files one after the other, in bounded memory; `-` is standard input. The end of a
/// file ends a document, as does the separator, and in JSON lines each line; the end-of-text id
/// follows each document. With `special_tokens` a document also gets text_template()'s; an
/// end of text among them is not doubled. `end`: that id; absent: end_of_text(), without which a
/// second document is refused; -1: documents are joined. Documents without text are left out, but
/// every file gives at least an end of text; empty files (0 bytes) are left out with a warning. A
/// line of JSON may have 64 MiB. Formats by the suffix of `output`: .bin with llm.c's header
/// (uint16 up to 65,536 ids, else uint32 under magic 20240801), .npy, .h5 (`tokens`, and
/// `documents`, the int64 index of each document's first token). Written under a temporary name,
/// synced and renamed. Returns the number of tokens. Throws Error(data) for inputs, also if all are
/// empty, for ones that change meanwhile, compressed ones and lines without a text, Error(usage)
/// for another suffix, Error(storage) for a failure to write; then nothing is left of the
/// output.
std::int64_t tokenize_files(const Tokenizer& tokenizer, std::span<const std::string> inputs,
                            const std::string& output, const DocumentSeparator& separator = {},
                            bool special_tokens = true, const JsonLines& format = {},
                            std::optional<std::int32_t> end = {});

/// The id of the token `name` of the vocabulary at the path `vocabulary`. Throws Error(data) if
/// there is none.
[[nodiscard]] std::int32_t find_token(const Tokenizer& tokenizer, const std::string& vocabulary,
                                      const std::string& name);

/// Writes the bytes of all tokens of token files (paths as open_tokens() takes them), exactly. An
/// end-of-text id between two documents becomes the separator, on a line of its own if it is one;
/// an end-of-text id at the very end gives nothing, nor do special tokens of text_template().
/// `output`: a path, written as by tokenize_files(), or empty for standard output. Returns the
/// number of tokens. Throws Error(data) for inputs, Error(storage) for a failure to write.
std::int64_t decode_files(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                          const std::string& output, const DocumentSeparator& separator = {});

/// Inputs, outputs and size for train_vocabulary().
struct VocabularyTraining {
  std::int64_t size = 0;            ///< ids in all: 256 bytes, merges, special tokens
  std::vector<std::string> inputs;  ///< text files, JSON lines; `-`: standard input
  std::vector<std::string> specials = {"<|endoftext|>"};  ///< split the text, are never merged
  std::string output;   ///< folder; gets vocab.json, merges.txt and tokenizer.json
  JsonLines json = {};  ///< reading of inputs that are JSON lines
};

/// Trains a byte-level BPE with GPT-2's split pattern: ids 0-255 are the bytes in GPT-2's order,
/// merge i makes id 256 + i, special tokens get the last ids. Merges the most frequent pair first,
/// of equally frequent ones the lexicographically greater pair of byte strings; the number of
/// threads does not matter. Returns the ids, fewer than `size` if the text has no more pairs; empty
/// files are left out with a warning.
/// Throws Error(usage) for sizes and special tokens that cannot be, Error(data) for inputs,
/// Error(storage) for a failure to write; then the folder is as before.
std::int64_t train_vocabulary(const VocabularyTraining& training);

/// Emits only complete UTF-8 sequences of a byte stream; invalid bytes become U+FFFD.
class Utf8Stream {
 public:
  [[nodiscard]] std::string push(std::string_view bytes);
  [[nodiscard]] std::string finish();

 private:
  std::string pending_;
};

/// Finds the first of some texts in a byte stream and gives the bytes before it.
class StopSearch {
 public:
  /// `stops`: none of them empty.
  explicit StopSearch(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Bytes that surely stand before a stop: a possible beginning of one is held back. Nothing
  /// once one was found.
  [[nodiscard]] std::string push(std::string_view bytes);
  /// Returns the bytes that were held back.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool found_ = false;
};

}  // namespace hyperslab::io
