// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// Text to token ids and back.
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

/// `bytes`: ids 0-255 are the bytes and 256 ends a document. Other names throw Error(data).
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

/// Emits only complete UTF-8 sequences of a byte stream; invalid bytes become U+FFFD.
class Utf8Stream {
 public:
  [[nodiscard]] std::string push(std::string_view bytes);
  [[nodiscard]] std::string finish();

 private:
  std::string pending_;
};

}  // namespace hyperslab::io
