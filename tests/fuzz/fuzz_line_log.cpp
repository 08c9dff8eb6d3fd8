// SPDX-License-Identifier: Apache-2.0
// The metrics.jsonl of an earlier start, cut back to the step that a resumed run goes on with.
#include "fuzz/input.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/line_log.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab;
  static const fuzz::Folder folder;
  const std::string path = folder.write("metrics.jsonl", fuzz::text_of(data, size));
  fuzz::take_or_refuse({ExitCode::storage}, [&] {
    io::LineLog log(path, 5);
    log.append(R"({"step":5})");
  });
  return 0;
}
