// SPDX-License-Identifier: Apache-2.0
#include "fuzz/input.hpp"
#include "hyperslab/tasks/task_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab;
  static const fuzz::Folder folder;
  const std::string path = folder.write("task.jsonl", fuzz::text_of(data, size));
  fuzz::take_or_refuse({ExitCode::data}, [&] { (void)tasks::read_task(path); });
  return 0;
}
