// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "tokenizer/json_lines.hpp"

/// Lines after a first byte that says whether broken ones are skipped and how long they may be.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab;
  static const fuzz::Folder folder;
  if (size == 0) return 0;
  io::JsonLines json;
  json.skip_broken = data[0] % 2 == 1;
  const std::size_t most = data[0] < 128 ? 1 << 16 : 64;
  const std::string path = folder.write("in.jsonl", fuzz::text_of(data + 1, size - 1));
  fuzz::take_or_refuse({ExitCode::data}, [&] {
    io::JsonLinesReader reader(path, json, most);
    std::vector<std::string> texts;
    while (reader.next(texts)) {
      for (const std::string& text : texts) {
        if (text.size() > most) std::abort();
      }
    }
  });
  return 0;
}
