// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::cli {

/// The prompts of a file: separated by blank lines if it has any, else one a line. Throws
/// Error(data) if it cannot be read or has none.
[[nodiscard]] std::vector<std::string> read_prompt_file(const std::string& path);

/// Prints texts to stdout, each prompt and what follows it, in the order of the prompts: the first
/// one that has not ended as it comes, the others when it is their turn. All of it is valid
/// UTF-8.
class Completions final : public generate::TokenListener {
 public:
  /// `stops`: texts that end a text. `tokenizer` must outlive this.
  Completions(const io::Tokenizer& tokenizer, const std::vector<std::string>& prompts,
              const std::vector<std::string>& stops, std::int64_t max_tokens);

  bool token(std::size_t prompt, std::int32_t id) override;
  void end(std::size_t prompt) override;

  /// A list of {prompt, text, prompt_ids, ids, finish}; finish: stop or count.
  [[nodiscard]] nlohmann::ordered_json to_json(const generate::Prompts& prompts) const;

 private:
  struct Completion {
    std::string prompt;  ///< valid UTF-8
    io::StopSearch search;
    io::Utf8Stream stream;
    std::string text;         ///< after the prompt, valid UTF-8
    std::size_t printed = 0;  ///< bytes of it
    std::vector<std::int32_t> ids;
    bool ended = false;
  };
  void print();

  const io::Tokenizer& tokenizer_;
  std::int64_t max_tokens_;
  std::vector<Completion> completions_;
  std::size_t current_ = 0;  ///< the first that has not ended
  bool begun_ = false;       ///< the current one's prompt is printed
};

}  // namespace hyperslab::cli
