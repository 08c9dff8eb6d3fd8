// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json, and after a byte of zero the tokenizer_config.json beside it.
#include "fuzz/input.hpp"
#include "fuzz/vocabulary.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab::fuzz;
  static const Folder folder;
  const std::string_view input = text_of(data, size);
  (void)folder.write("tokenizer.json", part_of(input, 0));
  (void)folder.write("tokenizer_config.json", part_of(input, 1).empty() ? "{}" : part_of(input, 1));
  use_vocabulary(folder.path());
  return 0;
}
