// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// Text to token ids and back. Threads may use one at the same time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// The bytes of one id; ids outside the vocabulary give nothing.
  [[nodiscard]] virtual std::string decode(std::int32_t id) const = 0;
  /// The id that ends a document, or -1.
  [[nodiscard]] virtual std::int32_t end_of_text() const = 0;
};

/// `bytes`: ids 0-255 are the bytes and 256 ends a document. Else the path of a byte-level BPE: a
/// folder with Hugging Face's tokenizer.json or with vocab.json and merges.txt (also
/// gpt2_vocab.json and gpt2_merges.txt), or one of the .json files. vocab.json has GPT-2's split
/// pattern; tokenizer.json names its own (matched by PCRE2). encode() takes all text as plain:
/// special tokens in it are not found. <|endoftext|>, <|end_of_text|> or </s> ends documents, the
/// first of these that the vocabulary has. Throws Error(data) with file and place for what is
/// missing, broken or more than byte-level BPE.
[[nodiscard]] std::unique_ptr<Tokenizer> open_tokenizer(const std::string& vocabulary);

/// Encodes the files one after the other, each ended by the end-of-text id, in bounded memory. A
/// line that is only `<|endoftext|>` becomes the end-of-text id; documents without text get none.
/// Formats by the suffix of `output`: .bin with llm.c's header (uint16 up to 65,536 ids, else
/// uint32 under magic 20240801), .npy, .h5 (`tokens`, and `documents`, the int64 place of each
/// document's first token). Written under a temporary name, synced and renamed. Returns the number
/// of tokens. Throws Error(data) for inputs, Error(usage) for another suffix, Error(storage) for
/// what cannot be written; then nothing is left of the output.
std::int64_t tokenize_files(const Tokenizer& tokenizer, std::span<const std::string> inputs,
                            const std::string& output);

/// What train_vocabulary() makes of which texts.
struct VocabularyTraining {
  std::int64_t size = 0;            ///< ids in all: 256 bytes, merges, special tokens
  std::vector<std::string> inputs;  ///< text files
  std::vector<std::string> specials = {"<|endoftext|>"};  ///< split the text, are never merged
  std::string output;  ///< folder; gets vocab.json, merges.txt and tokenizer.json
};

/// Trains a byte-level BPE with GPT-2's split pattern: ids 0-255 are the bytes in GPT-2's order,
/// merge i makes id 256 + i, special tokens get the last ids. Merges the most frequent pair first,
/// of equally frequent ones the lexicographically greater pair of byte strings; the number of
/// threads does not matter. Returns the ids, fewer than `size` where the text has no more pairs.
/// Throws Error(usage) for sizes and special tokens that cannot be, Error(data) for inputs,
/// Error(storage) for what cannot be written; then the folder is as before.
std::int64_t train_vocabulary(const VocabularyTraining& training);

/// Emits only complete UTF-8 sequences of a byte stream; invalid bytes become U+FFFD.
class Utf8Stream {
 public:
  [[nodiscard]] std::string push(std::string_view bytes);
  [[nodiscard]] std::string finish();

 private:
  std::string pending_;
};

}  // namespace hyperslab::io
