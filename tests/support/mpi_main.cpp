// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>

#include "hyperslab/core/error.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::test {
namespace {

comm::World* the_world = nullptr;

/// Names the rank of each failure, and ends all ranks if the others may be waiting for this one.
class RankListener final : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    if (world().rank() != 0) {
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", world().rank(),
                   result.file_name() != nullptr ? result.file_name() : "?", result.line_number(),
                   result.message());
    }
    if (!result.fatally_failed() || world().size() == 1) return;
    std::fflush(nullptr);
    world().abort(1);
  }
};

int run(int argc, char** argv) {
  comm::World scope(&argc, &argv);
  the_world = &scope;
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (scope.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());  // one file, of rank 0
  }
  listeners.Append(new RankListener);
  return static_cast<int>(scope.max(RUN_ALL_TESTS()));
}

}  // namespace

comm::World& world() { return *the_world; }

}  // namespace hyperslab::test

int main(int argc, char** argv) {
  try {
    return hyperslab::test::run(argc, argv);
  } catch (const hyperslab::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
