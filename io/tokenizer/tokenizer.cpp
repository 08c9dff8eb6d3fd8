// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/tokenizer.hpp"

#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocabulary() const override { return 257; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  [[nodiscard]] std::string decode(std::int32_t id) const override {
    return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
  }
  [[nodiscard]] std::int32_t end_of_text() const override { return 256; }
};

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& vocabulary) {
  if (vocabulary == "bytes") return std::make_unique<ByteTokenizer>();
  throw Error(ExitCode::data,
              "vocabulary '" + vocabulary + "': wanted 'bytes', found another name; use bytes");
}

}  // namespace hyperslab::io
