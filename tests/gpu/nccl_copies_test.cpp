// SPDX-License-Identifier: Apache-2.0
// What the members of a group of two write into each other's memory by copies.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "hyperslab/core/graph.hpp"
#include "hyperslab/core/profiler.hpp"
#include "nccl_group.hpp"

namespace hyperslab::test {
namespace {

using comm::Ticket;

/// Has memory that both members share. Skips if they cannot; with HYPERSLAB_REQUIRE_GPU=1 that is a
/// failure where CUDA says that they can, unless HYPERSLAB_PEER_COPIES=0 forbids it.
class NcclCopies : public NcclGroup {
 protected:
  static constexpr const char* kVariable = "HYPERSLAB_PEER_COPIES";

  void SetUp() override {
    NcclGroup::SetUp();
    if (IsSkipped() || HasFailure()) return;
    if (size() != 2) GTEST_SKIP() << "copies are for groups of two";
    memory_ = std::make_unique<Arena>("shared", Device::cuda, std::size_t{256} << 20);
    shared_ = group().share(*memory_);
    if (shared_) return;
    const bool linked = are_linked();
    ASSERT_FALSE(world().all(linked && requires_gpu() && wants_copies()))
        << "GPUs that NVLink connects do not share memory";
    GTEST_SKIP() << "the GPUs do not share memory";
  }
  void TearDown() override {
    shared_.reset();
    memory_.reset();
  }

  /// Shared memory, the same on both members.
  View take(Dim elements, DType dtype = DType::bf16) {
    return memory_->take(dtype, {elements}, "view");
  }
  static View part_of(View full, int member) {
    const Dim part = full.numel() / 2;
    return full.slice(member * part, part);
  }
  static int other() { return 1 - rank(); }

  /// Elements of the view on the GPU that are not expected(i).
  template <class Expected>
  static Dim wrong(CView view, Expected&& expected) {
    const std::vector<double> found = numbers(view);
    Dim count = 0;
    for (Dim i = 0; i < view.numel(); ++i) {
      if (found[static_cast<std::size_t>(i)] != expected(i)) ++count;
    }
    return count;
  }

  /// How many kernels of NCCL `work` takes, by name.
  template <class Work>
  static std::ptrdiff_t kernels_of_nccl(Work&& work) {
    Profiler profiler(ctx().recorder(), Profiler::Watch::calls_and_kernels);
    profiler.start();
    work();
    synchronize(ctx());
    profiler.stop();
    return std::ranges::count_if(profiler.kernels(), [](const KernelTime& kernel) {
      return kernel.name.starts_with("ncclDev");
    });
  }

 private:
  static bool wants_copies() {
    const char* wish = std::getenv(kVariable);
    return wish == nullptr || std::string_view(wish) != "0";
  }
  /// Whether CUDA says that each GPU reaches the other's memory over NVLink.
  static bool are_linked() {
    const std::string theirs = world().all_gather(device_bus_id()).at(std::size_t(other()));
    int mine = 0;
    int peer = 0;
    int reaches = 0;
    int linked = 0;
    const bool known = world().local_size() == 2 && cudaGetDevice(&mine) == cudaSuccess &&
                       cudaDeviceGetByPCIBusId(&peer, theirs.c_str()) == cudaSuccess &&
                       cudaDeviceCanAccessPeer(&reaches, mine, peer) == cudaSuccess &&
                       cudaDeviceGetP2PAttribute(&linked, cudaDevP2PAttrNativeAtomicSupported, mine,
                                                 peer) == cudaSuccess;
    (void)cudaGetLastError();
    return world().all(known && reaches != 0 && linked != 0);
  }

  std::unique_ptr<Arena> memory_;
  std::shared_ptr<void> shared_;
};

TEST_F(NcclCopies, ReportWhatIsShared) {
  const View inside = take(64);
  const Tensor outside = filled(DType::bf16, 64, 0);

  EXPECT_TRUE(group().is_shared(inside));
  EXPECT_FALSE(group().is_shared(outside.view()));
}

// In turns eager and in a graph; the shard is apart or in place.
TEST_F(NcclCopies, PiecesGoRightToWhereTheyBelong) {
  const Dim part = Dim{1} << 19;
  const View full = take(2 * part);
  const View apart = take(part);
  constexpr int kPieces = 3;  // which do not divide the part
  const auto in_pieces = [&](auto&& start) {
    for (int i = 0; i < kPieces; ++i) {
      const auto begin_of = [&](int piece) { return part * piece / kPieces / 8 * 8; };
      group().wait(ctx(), start(begin_of(i), begin_of(i + 1) - begin_of(i)));
    }
  };
  GraphSegment segment;
  const auto work = [&] {
    in_pieces([&](Dim begin, Dim count) {
      return group().reduce_scatter_others(ctx(), full, apart, begin, count);
    });
    in_pieces([&](Dim begin, Dim count) {
      return group().reduce_scatter_others(ctx(), full, part_of(full, rank()), begin, count);
    });
    in_pieces(
        [&](Dim begin, Dim count) { return group().all_gather_piece(ctx(), full, begin, count); });
  };

  for (int run = 0; run < 6; ++run) {
    copy(ctx(), filled(DType::bf16, 2 * part, rank() + run).view(), full);
    if (run % 3 == 0) {
      work();
    } else {
      segment.run(ctx(), true, work);
    }

    EXPECT_EQ(wrong(apart, [&](Dim) { return other() + run; }), 0) << run;
    for (const int member : {0, 1}) {
      EXPECT_EQ(wrong(part_of(full, member), [&](Dim) { return 1 - member + run; }), 0)
          << run << " " << member;
    }
  }
}

// In turns eager and in two graphs, with an eager call in progress beside all of it. There are more
// pieces than messages that PeerCopies has in progress, so that later ones reuse the rooms of
// earlier ones.
TEST_F(NcclCopies, LargeCallsOfGraphsAndBesideThem) {
  constexpr int kPieces = 6;
  const Dim part = (Dim{3} << 20) + 64;
  const View full = take(2 * part);
  const View apart = take(part);
  const View beside = take(1 << 20);
  const auto wait_for_pieces = [&](auto&& start) {
    std::array<Ticket, kPieces> tickets{};
    for (int i = 0; i < kPieces; ++i) {
      const Dim begin = part * i / kPieces;
      tickets.at(std::size_t(i)) = start(begin, part * (i + 1) / kPieces - begin);
    }
    for (const Ticket ticket : tickets) group().wait(ctx(), ticket);
  };
  // A sum over two without the member's own term is the other's term. Each member receives it for
  // its own part, puts it there, and gathers all parts.
  const auto work = [&] {
    wait_for_pieces([&](Dim begin, Dim count) {
      return group().reduce_scatter_others(ctx(), full, apart, begin, count);
    });
    copy(ctx(), apart, part_of(full, rank()));
    wait_for_pieces(
        [&](Dim begin, Dim count) { return group().all_gather_piece(ctx(), full, begin, count); });
  };
  std::array<GraphSegment, 2> segments;

  for (int run = 0; run < 11; ++run) {
    // Element i of `full` and `beside` of a member. element() repeats after 23 seeds, so that no
    // two terms of all runs and members are the same.
    const auto term = [&](Dim i, int member) { return element(i, 2 * run + member); };
    copy(ctx(), elements_of(DType::bf16, full.numel(), 2 * run + rank()).view(), full);
    copy(ctx(), elements_of(DType::bf16, beside.numel(), 2 * run + rank()).view(), beside);
    const Ticket eager = group().all_gather_piece(ctx(), beside, 0, beside.numel() / 2);
    if (run % 3 == 0) {
      work();
    } else {
      segments.at(std::size_t(run % 2)).run(ctx(), true, work);
    }
    group().wait(ctx(), eager);

    EXPECT_EQ(wrong(apart, [&](Dim i) { return term(rank() * part + i, other()); }), 0) << run;
    EXPECT_EQ(wrong(full, [&](Dim i) { return term(i, i < part ? 1 : 0); }), 0) << run;
    EXPECT_EQ(wrong(beside, [&](Dim i) { return term(i, i < beside.numel() / 2 ? 0 : 1); }), 0)
        << run;
  }
}

// From outside and from its own part. Gathers below 256 KiB, and into memory that is not shared,
// are NCCL's, with the same result.
TEST_F(NcclCopies, GathersIntoSharedMemory) {
  Tensor unshared = filled(DType::bf16, Dim{1} << 20, 99);
  for (const View full : {take(Dim{1} << 20), take(1 << 18), take(2 * 1021), unshared.view()}) {
    const Dim part = full.numel() / 2;
    const View own = part_of(full, rank());
    GraphSegment segment;
    for (const bool in_place : {false, true}) {
      for (int run = 0; run < 4; ++run) {
        const int seed = 4 * static_cast<int>(in_place) + run;
        copy(ctx(), filled(DType::bf16, full.numel(), 99).view(), full);
        const Tensor shard = elements_of(DType::bf16, part, 2 * seed + rank());
        if (in_place) copy(ctx(), shard.view(), own);
        const auto gather = [&] {
          group().wait(ctx(), group().all_gather(ctx(), in_place ? own : shard.view(), full));
        };

        // A graph keeps addresses, and the shard outside has others in each run.
        in_place ? segment.run(ctx(), true, gather) : gather();

        EXPECT_EQ(
            wrong(full, [&](Dim i) { return element(i % part, 2 * seed + (i < part ? 0 : 1)); }), 0)
            << full.numel() << " " << in_place << " " << run;
      }
    }
  }
}

TEST_F(NcclCopies, GathersIntoSharedMemoryTakeNoKernelOfNccl) {
  if (!Profiler::unavailable().empty()) GTEST_SKIP() << Profiler::unavailable();
  const Tensor shard = elements_of(DType::bf16, Dim{1} << 19, rank());
  const View shared = take(Dim{1} << 20);
  Tensor unshared = filled(DType::bf16, Dim{1} << 20, 0);
  const auto kernels_of_gather = [&](View full) {
    return kernels_of_nccl(
        [&] { group().wait(ctx(), group().all_gather(ctx(), shard.view(), full)); });
  };

  EXPECT_EQ(kernels_of_gather(shared), 0);
  EXPECT_GT(kernels_of_gather(unshared.view()), 0);
}

// Members that share memory have PeerSums, too.
TEST_F(NcclCopies, SmallSumsTakeNoKernelOfNccl) {
  if (!Profiler::unavailable().empty()) GTEST_SKIP() << Profiler::unavailable();
  const auto kernels_of_reduction = [](Dim elements, comm::ReduceOp op) {
    Tensor x = filled(DType::f32, elements, 1);
    return kernels_of_nccl([&] { group().wait(ctx(), group().all_reduce(ctx(), x.view(), op)); });
  };

  EXPECT_EQ(kernels_of_reduction(65536, comm::ReduceOp::sum), 0);
  EXPECT_GT(kernels_of_reduction(65537, comm::ReduceOp::sum), 0) << "more than 256 KiB";
  EXPECT_GT(kernels_of_reduction(64, comm::ReduceOp::max), 0);
}

/// A data group, whose all-reduces go by copies, too.
class NcclDataCopies : public NcclCopies {
 protected:
  static void SetUpTestSuite() { set_up_suite(comm::GroupRole::data); }
  void SetUp() override {
    const char* wish = std::getenv(kVariable);
    if (wish != nullptr && std::string_view(wish) == "tensor") {
      GTEST_SKIP() << kVariable << "=tensor";
    }
    NcclCopies::SetUp();
    if (!IsSkipped() && !HasFailure()) busy_ = filled(DType::bf16, Dim{1} << 25, 0);
  }
  void TearDown() override {
    busy_ = {};
    NcclCopies::TearDown();
  }
  static double sum(Dim i, int seed) { return element(i, 2 * seed) + element(i, 2 * seed + 1); }
  static Tensor terms(CView view, int seed) {
    return elements_of(view.dtype(), view.numel(), 2 * seed + rank());
  }
  /// Holds up one of the members, the other one in the next run, on its GPU.
  void be_late(int run) {
    if (run % 2 != rank()) return;
    const View busy = busy_.view();
    for (int i = 0; i < 20; ++i) copy(ctx(), part_of(busy, 0), part_of(busy, 1));
  }

 private:
  Tensor busy_;
};

// Parts of one piece, of pieces that reuse the rooms, and parts of which one has more bytes, or a
// piece more. All sums are in progress at once: nothing waits for the GPU between them, which is
// late on one member. They go with and without marks of their time.
TEST_F(NcclDataCopies, SumsWholeBuffers) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto element_bytes = static_cast<Dim>(size_of(dtype));
    std::vector<View> all;
    for (const Dim bytes : {Dim{1} << 20, Dim{1000003} * element_bytes, Dim{36} << 20,
                            (Dim{32} << 20) + 16, Dim{3} << 20}) {
      all.push_back(take(bytes / element_bytes, dtype));
    }
    for (int run = 0; run < 4; ++run) {
      group().report_reductions(run < 2);
      const auto seed_of = [&](std::size_t i) { return run + static_cast<int>(i); };
      std::vector<Tensor> filling;
      for (std::size_t i = 0; i < all.size(); ++i) filling.push_back(terms(all[i], seed_of(i)));
      be_late(run);
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < all.size(); ++i) {
        copy(ctx(), filling[i].view(), all[i]);
        tickets.push_back(group().all_reduce(ctx(), all[i], comm::ReduceOp::sum));
      }
      for (const Ticket ticket : tickets) group().wait(ctx(), ticket);
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(wrong(all[i], [&](Dim at) { return sum(at, seed_of(i)); }), 0) << run << " " << i;
      }
    }
  }
  group().report_reductions(true);
}

// After the wait the other member's part may be overwritten: what was sent out of it has arrived.
// Gathering brings its sums.
TEST_F(NcclDataCopies, ScattersSumsInPlaceAndGathersThem) {
  for (const Dim part : {Dim{1} << 19, Dim{600001}, Dim{41} << 19}) {
    const View full = take(2 * part);
    const View own = part_of(full, rank());
    const Tensor garbage = filled(DType::bf16, part, 99);
    for (int run = 0; run < 4; ++run) {
      const Tensor filling = terms(full, run);
      be_late(run);
      copy(ctx(), filling.view(), full);
      group().wait(ctx(), group().reduce_scatter(ctx(), full, own));
      copy(ctx(), garbage.view(), part_of(full, other()));
      EXPECT_EQ(wrong(own, [&](Dim i) { return sum(rank() * part + i, run); }), 0) << run;

      group().wait(ctx(), group().all_gather(ctx(), own, full));
      EXPECT_EQ(wrong(full, [&](Dim i) { return sum(i, run); }), 0) << part << " " << run;
    }
  }
}

TEST_F(NcclDataCopies, LargeSumsTakeNoKernelOfNccl) {
  if (!Profiler::unavailable().empty()) GTEST_SKIP() << Profiler::unavailable();
  const View shared = take(Dim{1} << 20, DType::f32);
  Tensor unshared = filled(DType::f32, shared.numel(), 1);
  const auto kernels_of_reduction = [](View x, comm::ReduceOp op) {
    return kernels_of_nccl([&] { group().wait(ctx(), group().all_reduce(ctx(), x, op)); });
  };

  EXPECT_EQ(kernels_of_reduction(shared, comm::ReduceOp::sum), 0);
  EXPECT_GT(kernels_of_reduction(shared.slice(0, 1000), comm::ReduceOp::sum), 0);
  EXPECT_GT(kernels_of_reduction(shared, comm::ReduceOp::max), 0);
  EXPECT_GT(kernels_of_reduction(unshared.view(), comm::ReduceOp::sum), 0);
}

// A graph, which may run beside an eager sum, leaves its sums to NCCL.
TEST_F(NcclDataCopies, SumsOfGraphsBesideEagerOnes) {
  const View in_graph = take(Dim{1} << 20, DType::f32);
  const View eager = take(Dim{1} << 20, DType::f32);
  GraphSegment segment;
  for (int run = 0; run < 4; ++run) {
    copy(ctx(), terms(in_graph, run).view(), in_graph);
    copy(ctx(), terms(eager, run + 1).view(), eager);
    const Ticket beside = group().all_reduce(ctx(), eager, comm::ReduceOp::sum);
    segment.run(ctx(), true, [&] {
      group().wait(ctx(), group().all_reduce(ctx(), in_graph, comm::ReduceOp::sum));
    });
    group().wait(ctx(), beside);
    EXPECT_EQ(wrong(in_graph, [&](Dim i) { return sum(i, run); }), 0) << run;
    EXPECT_EQ(wrong(eager, [&](Dim i) { return sum(i, run + 1); }), 0) << run;
  }
}

}  // namespace
}  // namespace hyperslab::test
