// SPDX-License-Identifier: Apache-2.0
// A vocab.json, its merges.txt and the tokenizer_config.json beside them, separated by bytes of
// zero.
#include "fuzz/vocabulary.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab::fuzz;
  static const Folder folder;
  const std::string_view input = text_of(data, size);
  (void)folder.write("vocab.json", part_of(input, 0));
  (void)folder.write("merges.txt", part_of(input, 1));
  (void)folder.write("tokenizer_config.json", part_of(input, 2).empty() ? "{}" : part_of(input, 2));
  use_vocabulary(folder.path());
  return 0;
}
