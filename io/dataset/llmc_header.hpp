// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace hyperslab::io {

// karpathy/llm.c, dev/data/data_common.py, HEADERS_INFO.
inline constexpr std::int64_t kLlmcHeaderWords = 256;  ///< int32: magic, version, tokens, zeros
inline constexpr std::int64_t kLlmcHeaderBytes = 4 * kLlmcHeaderWords;
inline constexpr std::int32_t kLlmcMagic16 = 20240520;  ///< uint16 tokens
inline constexpr std::int32_t kLlmcVersion16 = 1;
inline constexpr std::int32_t kLlmcMagic32 = 20240801;  ///< uint32 tokens
inline constexpr std::int32_t kLlmcVersion32 = 7;

/// In the words that llm.c leaves zero: a mark, then ids, both halves of the fingerprint and the
/// end of documents (VocabularyRecord).
inline constexpr std::size_t kRecordWord = 8;
inline constexpr std::int32_t kRecordMark = 0x56434231;

}  // namespace hyperslab::io
