// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/prompts.hpp"

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {

Prompts encode_prompts(const io::Tokenizer& tokenizer, const io::TextEnds& ends,
                       const std::vector<std::string>& texts, bool special_tokens) {
  Prompts prompts;
  std::vector<std::int32_t> before;
  if (special_tokens) before = tokenizer.text_template().before;
  for (const std::string& text : texts) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    prompts.push_back(before);
    prompts.back().insert(prompts.back().end(), ids.begin(), ids.end());
    if (!prompts.back().empty()) continue;
    if (ends.separator < 0) {
      throw Error(ExitCode::usage,
                  "a prompt is empty and the vocabulary has no end-of-text id to begin with");
    }
    prompts.back().push_back(ends.separator);  // a new document begins
  }
  return prompts;
}

}  // namespace hyperslab::generate
