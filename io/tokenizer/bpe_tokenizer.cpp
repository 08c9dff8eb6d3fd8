// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/bpe_tokenizer.hpp"

#include <utility>

#include "tokenizer/cuts.hpp"
#include "tokenizer/nfc.hpp"

namespace hyperslab::io {
namespace {

/// The two bytes before and after an offset.
std::size_t pair_at(std::string_view text, std::size_t at) {
  return std::size_t{static_cast<unsigned char>(text[at - 1])} << 8 |
         static_cast<unsigned char>(text[at]);
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)),
      special_(vocabulary_.special_marks()),
      pattern_(vocabulary_.pattern, vocabulary_.pattern_source),
      bytes_(vocabulary_.byte_ids),
      tables_(vocabulary_, bytes_, vocabulary_.whole_pieces) {
  for (const bool special : {true, false}) {  // the special one of two counts
    for (const AddedToken& token : vocabulary_.added) {
      if (token.special == special) add(token);
    }
  }
}

/// Bytes next to a border that the token has inside may be others in text that is not normalized.
void BpeTokenizer::add(const AddedToken& token) {
  const bool changes = token.normalized && vocabulary_.in_nfc;
  std::string copy;
  const std::string_view text = changes ? in_nfc(token.text, copy) : token.text;
  (token.normalized ? normal_added_ : added_).add(token, std::string(text));
  for (std::size_t i = 1; i < text.size(); ++i) {
    inside_added_.set(pair_at(text, i));
    for (std::size_t byte = 0x80; changes && byte < 0x100; ++byte) {
      inside_added_.set(byte << 8 | static_cast<unsigned char>(text[i]));
      inside_added_.set(std::size_t{static_cast<unsigned char>(text[i - 1])} << 8 | byte);
    }
  }
  if (token.hidden) return;
  any_takes_before_ = any_takes_before_ || token.takes_before;
  if (!token.takes_after) return;
  ends_with_space_.set(static_cast<unsigned char>(text.back()));
  for (std::size_t byte = 0x80; changes && byte < 0x100; ++byte) ends_with_space_.set(byte);
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
  normal_added_.split(vocabulary_.in_nfc ? in_nfc(text, worker.composed) : text,
                      worker.normal_parts);
  for (const AddedTokenSearch::Part& part : worker.normal_parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    worker.splitter.start(part.text);
    for (auto piece = worker.splitter.next(); !piece.empty(); piece = worker.splitter.next()) {
      worker.encoder.append(piece, ids);
    }
  }
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  auto loan = workers_.lend([this] {
    return std::make_unique<Worker>(Worker{Splitter(pattern_), PieceEncoder(tables_), {}, {}, {}});
  });
  Worker& worker = loan.worker();
  added_.split(text, worker.parts);
  for (const AddedTokenSearch::Part& part : worker.parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      append(part.text, worker, ids);
    }
  }
  return ids;
}

/// True if text may be cut at an offset of io::last_cut(): after a line break, or before a space.
bool BpeTokenizer::may_cut(std::string_view text, std::size_t at) const {
  if (inside_added_[pair_at(text, at)]) return false;
  const bool after_line = text[at - 1] == '\n';
  if (after_line && any_takes_before_) return false;
  const char before_space = text[after_line ? at - 2 : at - 1];
  return !ends_with_space_[static_cast<unsigned char>(before_space)];
}

std::size_t BpeTokenizer::last_cut(std::string_view text, std::size_t from) const {
  if (added_.is_empty() && normal_added_.is_empty()) return io::last_cut(text, from);
  return last_cut_where(
      text, from, [this](std::string_view whole, std::size_t at) { return may_cut(whole, at); });
}

std::string BpeTokenizer::decode(std::int32_t id) const {
  if (id < 0 || id >= vocabulary()) return {};
  return vocabulary_.tokens[static_cast<std::size_t>(id)];
}

bool BpeTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocabulary() && special_[static_cast<std::size_t>(id)];
}

}  // namespace hyperslab::io
