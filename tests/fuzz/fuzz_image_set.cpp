// SPDX-License-Identifier: Apache-2.0
// A packed set: set.json up to a byte of zero, then index.npy, over a shard of 2048 bytes.
#include <algorithm>

#include "fuzz/image_set.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab::fuzz;
  static const Folder folder;
  static const std::string shard = folder.write("a.tar", std::string(2048, 'a'));
  const std::string_view text = text_of(data, size);
  const std::size_t zero = std::min(text.find('\0'), text.size());
  (void)folder.write("set.json", text.substr(0, zero));
  (void)folder.write("index.npy", text.substr(std::min(zero + 1, text.size())));
  read_image_set(folder.path());
  return 0;
}
