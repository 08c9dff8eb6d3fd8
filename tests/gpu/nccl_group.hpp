// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_test.hpp"
#include "hyperslab/comm/gpus.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::test {

/// One communicator over the GPUs of all ranks for all tests of a suite. Skips if the host has
/// fewer GPUs than ranks; with HYPERSLAB_REQUIRE_GPU=1 that is a failure. A program started without
/// a launcher tests the self communicator on one GPU.
class NcclGroup : public testing::Test {
 protected:
  static void SetUpTestSuite() { set_up_suite(comm::GroupRole::tensor); }
  static void set_up_suite(comm::GroupRole role) {
    has_gpus = world().all(cuda_device_count() >= world().local_size());
    if (!has_gpus) return;
    use_cuda_device(world().local_rank());
    the_context = std::make_unique<Context>(Device::cuda);
    the_group = world().communicator(Device::cuda, role);
  }
  static void TearDownTestSuite() {
    the_group.reset();
    the_context.reset();
  }

  void SetUp() override {
    if (has_gpus) return;
    if (requires_gpu()) {
      FAIL() << "HYPERSLAB_REQUIRE_GPU=1, and there are " << cuda_device_count() << " GPUs for "
             << world().local_size() << " ranks of a host";
    }
    GTEST_SKIP() << "fewer GPUs than ranks here";
  }

  static bool requires_gpu() {
    const char* required = std::getenv("HYPERSLAB_REQUIRE_GPU");
    return required != nullptr && std::string(required) == "1";
  }

  static Context& ctx() { return *the_context; }
  static comm::Communicator& group() { return *the_group; }
  static int rank() { return group().rank(); }
  static int size() { return group().size(); }
  static int next() { return (rank() + 1) % size(); }
  static int previous() { return (rank() + size() - 1) % size(); }

  [[nodiscard]] static Tensor on_gpu(CView host) {
    Tensor out(Device::cuda, host.dtype(), host.shape());
    copy(ctx(), host, out.view());
    return out;
  }
  /// After everything on the context's stream.
  [[nodiscard]] static Tensor on_cpu(CView gpu) {
    Tensor out(Device::cpu, gpu.dtype(), gpu.shape());
    copy(ctx(), gpu, out.view());
    synchronize(ctx());
    return out;
  }
  [[nodiscard]] static std::vector<double> numbers(CView gpu) {
    return to_doubles(on_cpu(gpu).view());
  }
  /// elements() of a member, on the GPU.
  [[nodiscard]] static Tensor elements_of(DType dtype, Dim n, int member) {
    return on_gpu(elements(dtype, n, member).view());
  }
  [[nodiscard]] static Tensor filled(DType dtype, Dim n, double value) {
    return on_gpu(filled_tensor(dtype, {n}, value).view());
  }

 private:
  static inline bool has_gpus = false;
  static inline std::unique_ptr<Context> the_context;
  static inline std::unique_ptr<comm::Communicator> the_group;
};

}  // namespace hyperslab::test
