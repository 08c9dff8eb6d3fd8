// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/kernel_class.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace hyperslab::ops {
namespace {

TEST(KernelClass, GoesByTheName) {
  const std::vector<std::pair<const char*, KernelClass>> expected = {
      {"nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", KernelClass::matmul},
      {"cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", KernelClass::matmul},
      {"cublasLt::splitKreduce_kernel<32, 16, int>", KernelClass::matmul},
      {"activation_product_kernel<ForwardFinisher<GeluTanh<true>, true, bf16> >",
       KernelClass::matmul},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop", KernelClass::attention},
      {"ncclDevKernel_AllReduce_Sum_f32_RING_LL", KernelClass::communication},
      {"peer_sum_kernel<float>", KernelClass::communication},
      {"peer_add_kernel<float>", KernelClass::communication},
      {"each_amax_kernel<8, Gated<Silu, __nv_bfloat16>>", KernelClass::elementwise},
      {"masked_softmax_backward_kernel<8, true>", KernelClass::softmax},
      {"loss_kernel<float>", KernelClass::softmax},
      {"vocabulary_loss_kernel<__nv_bfloat16>", KernelClass::softmax},
      {"sum_losses_kernel", KernelClass::reduction},
      {"pairs_kernel", KernelClass::reduction},
      {"sum_pairs_kernel", KernelClass::reduction},
      {"add_norm_kernel<float>", KernelClass::reduction},
      {"norm_backward_kernel<float>", KernelClass::reduction},
      {"add_squares_kernel", KernelClass::reduction},
      {"each_kernel<8, AdamWUpdate<__nv_bfloat16> >", KernelClass::optimizer},
      {"each_kernel<4, SgdUpdate<float> >", KernelClass::optimizer},
      {"each_kernel<8, Rotate<__nv_bfloat16> >", KernelClass::elementwise},
      {"finalize_step_kernel", KernelClass::optimizer},
      {"mark_kernel", KernelClass::other},
      {"something_else", KernelClass::other},
  };
  for (const auto& [name, kernel_class] : expected) {
    EXPECT_EQ(class_of_kernel(name), kernel_class) << name;
  }
}

/// Names of the kernels in src/ops/cuda.
std::set<std::string> kernels_in_sources() {
  const std::regex kernel(R"(\b(\w+_kernel)\()");
  std::set<std::string> names;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(HYPERSLAB_OPS_CUDA_SOURCES)) {
    const std::string extension = file.path().extension();
    if (extension != ".cu" && extension != ".cuh") continue;
    std::ifstream in(file.path());
    std::stringstream text;
    text << in.rdbuf();
    const std::string source = text.str();
    for (std::sregex_iterator i(source.begin(), source.end(), kernel), end; i != end; ++i) {
      names.insert((*i)[1]);
    }
  }
  return names;
}

TEST(KernelClass, KnowsEveryKernelOfTheSources) {
  // Clocks, copies for the host, and the initial values, which no step computes.
  const std::set<std::string> others = {"mark_kernel", "publish_kernel", "publish_loads_kernel",
                                        "fill_normal_kernel"};
  const std::set<std::string> names = kernels_in_sources();
  EXPECT_GT(names.size(), 15U);
  for (const std::string& name : names) {
    EXPECT_EQ(class_of_kernel(name) == KernelClass::other, others.contains(name)) << name;
  }
}

}  // namespace
}  // namespace hyperslab::ops
