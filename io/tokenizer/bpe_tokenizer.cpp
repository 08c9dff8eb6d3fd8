// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/bpe_tokenizer.hpp"

#include <utility>

#include "tokenizer/markers.hpp"
#include "tokenizer/nfc.hpp"

namespace hyperslab::io {

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)),
      special_(vocabulary_.special_marks()),
      pattern_(vocabulary_.pattern, vocabulary_.pattern_source),
      bytes_(vocabulary_.byte_ids),
      tables_(vocabulary_, bytes_, vocabulary_.whole_pieces) {
  for (const std::int32_t id : vocabulary_.added) {
    added_.push_back(vocabulary_.tokens[static_cast<std::size_t>(id)]);
  }
}

void BpeTokenizer::Bytes::append(std::string_view piece, std::vector<std::int32_t>& ids) const {
  const std::size_t begin = ids.size();
  ids.resize(begin + piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i) {
    ids[begin + i] = ids_[static_cast<unsigned char>(piece[i])];
  }
}

void BpeTokenizer::append(std::string_view text, Worker& worker,
                          std::vector<std::int32_t>& ids) const {
  worker.splitter.start(vocabulary_.in_nfc ? in_nfc(text, worker.composed) : text);
  for (auto piece = worker.splitter.next(); !piece.empty(); piece = worker.splitter.next()) {
    worker.encoder.append(piece, ids);
  }
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  auto loan = workers_.lend([this] {
    return std::make_unique<Worker>(Worker{Splitter(pattern_), PieceEncoder(tables_), {}});
  });
  MarkerSearch search(added_, text);
  while (true) {
    const MarkerSearch::Part part = search.next();
    append(part.before, loan.worker(), ids);
    if (part.marker < 0) return ids;
    ids.push_back(vocabulary_.added[static_cast<std::size_t>(part.marker)]);
  }
}

std::string BpeTokenizer::decode(std::int32_t id) const {
  if (id < 0 || id >= vocabulary()) return {};
  return vocabulary_.tokens[static_cast<std::size_t>(id)];
}

bool BpeTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocabulary() && special_[static_cast<std::size_t>(id)];
}

}  // namespace hyperslab::io
