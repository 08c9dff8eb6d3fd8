// SPDX-License-Identifier: Apache-2.0
#include "dataset/token_writer.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/document_reader.hpp"

namespace hyperslab::io {
namespace {

/// Documents without text are left out, but every file gives at least an end of text.
void append_file(const Tokenizer& tokenizer, const std::string& path, TokenWriter& writer) {
  const std::int32_t end_of_text = tokenizer.end_of_text();
  DocumentReader reader(path);
  bool open = true;  // something is to be ended at the end of the file
  bool has_text = false;
  for (DocumentReader::Piece piece; !piece.ends_file;) {
    piece = reader.next();
    writer.append(tokenizer.encode(piece.text));
    has_text = has_text || !piece.text.empty();
    if (has_text) open = true;
    if (!(piece.ends_document && has_text) && !(piece.ends_file && open)) continue;
    if (end_of_text >= 0) writer.append({&end_of_text, 1});
    has_text = open = false;
  }
}

}  // namespace

std::int64_t tokenize_files(const Tokenizer& tokenizer, std::span<const std::string> inputs,
                            const std::string& output) {
  if (inputs.empty()) {
    throw Error(ExitCode::usage,
                "tokenize: wanted at least one text file, found none; use --input");
  }
  TokenWriter writer(output, tokenizer.vocabulary(), tokenizer.end_of_text());
  for (const std::string& path : inputs) append_file(tokenizer, path, writer);
  return writer.finish();
}

}  // namespace hyperslab::io
