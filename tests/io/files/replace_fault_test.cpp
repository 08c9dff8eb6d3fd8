// SPDX-License-Identifier: Apache-2.0
// Every way to write a file: when any of its calls fails, the file is as before or complete.
#include <algorithm>
#include <cerrno>
#include <optional>

#include "dataset/token_writer.hpp"
#include "hyperslab/io/line_log.hpp"
#include "hyperslab/io/npy_file.hpp"
#include "hyperslab/io/safetensors.hpp"
#include "hyperslab/io/text_file.hpp"
#include "io/dataset/files.hpp"
#include "support/nth_fault.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;

struct Writer {
  const char* name;    ///< of the file
  const char* before;  ///< what the file holds before
  void (*write)(const std::string& path);
  int least_calls;  ///< that can fail
};

void write_text(const std::string& path) { io::write_text_file(path, "new"); }
void write_tokens(const std::string& path) { io::write_token_file(path, Ids{1, 2, 9, 4}, 10, 9); }
void write_rows(const std::string& path) {
  io::NpyFile file(path, 2, 1);
  for (const float value : {1.0F, 2.0F}) file.append(std::span(&value, 1));
  file.finish();
}
/// Keeps the lines before step 2.
void cut_lines(const std::string& path) { const io::LineLog log(path, 2); }

class ReplaceFault : public FilesTest, public testing::WithParamInterface<Writer> {
 protected:
  /// Whether the write of the parameter fails if its n-th call does so with `what`; none if it
  /// makes fewer calls.
  std::optional<bool> fails_at(int n, int what) {
    const NthFault fault(n, what);
    bool failed = false;
    try {
      GetParam().write(path(GetParam().name));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage);
      EXPECT_NE(std::string(error.what()).find(path(GetParam().name)), std::string::npos);
      failed = true;
    }
    return fault.hit() ? std::optional(failed) : std::nullopt;
  }
};

TEST_P(ReplaceFault, TheNthFailingCallLeavesOldOrNew) {
  const auto& [name, before, write_new, least_calls] = GetParam();
  write(name, before);
  write_new(path(name));
  const std::size_t complete = content(name).size();  // HDF5 files hold the time of day
  ASSERT_NE(complete, std::string(before).size());

  for (const int what : {ENOSPC, EIO, fault::kShortWrite}) {
    int failures = 0;
    for (int n = 1;; ++n) {
      SCOPED_TRACE(testing::Message() << "errno " << what << " at call " << n);
      ASSERT_LT(n, 100);
      write(name, before);
      const std::optional<bool> failed = fails_at(n, what);
      EXPECT_EQ(number_of_files(), 1U);
      const std::string found = content(name);
      EXPECT_TRUE(found.size() == complete || (failed.value_or(false) && found == before)) << found;
      if (!failed) break;
      failures += *failed ? 1 : 0;
    }
    if (what == fault::kShortWrite) {
      EXPECT_EQ(failures, 0) << "a short write is continued";
    } else {
      EXPECT_GE(failures, least_calls);
    }
  }
}

// Create, write, sync, rename, sync of the folder, and what a format adds.
INSTANTIATE_TEST_SUITE_P(Writers, ReplaceFault,
                         testing::Values(Writer{"text.json", "older", write_text, 5},
                                         Writer{"tokens.bin", "old", write_tokens, 6},
                                         Writer{"tokens.npy", "old", write_tokens, 6},
                                         Writer{"tokens.h5", "old", write_tokens, 9},
                                         Writer{"rows.npy", "old", write_rows, 7},
                                         Writer{"lines.jsonl", "{\"step\":1}\n{\"step\":2}\n",
                                                cut_lines, 6}),
                         [](const auto& writer) {
                           std::string name = writer.param.name;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

using ModelFolderFault = FilesTest;

TEST_F(ModelFolderFault, TheNthFailingCallLeavesNoModelOrAWholeOne) {
  const std::vector<io::SafetensorsSpec> tensors = {{"a", {2}}};
  const std::string model = path("model");
  for (int n = 1;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 100);
    std::filesystem::remove_all(model);
    const NthFault fault(n, ENOSPC);
    bool failed = false;
    try {
      io::ModelFolder folder(model);
      folder.write_text("config.json", "{}");
      folder.write_tensors(tensors, DType::f32, [](std::size_t, View out) {
        std::ranges::fill(out.span<float>(), 1.0F);
      });
      folder.commit();
    } catch (const Error&) {
      failed = true;
    }
    if (!fault.hit()) break;
    const bool is_whole = std::filesystem::exists(model + "/model.safetensors") &&
                          std::filesystem::exists(model + "/config.json");
    EXPECT_TRUE(is_whole || !std::filesystem::exists(model));
    EXPECT_TRUE(is_whole || failed);
  }
}

}  // namespace
}  // namespace hyperslab::test
