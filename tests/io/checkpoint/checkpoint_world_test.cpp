// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "hyperslab/io/checkpoint.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

TEST(CheckpointWorld, RanksSaveRowsAndLoadColumns) {
  std::optional<TempFolder> folder;
  if (world().rank() == 0) folder.emplace();
  const std::string directory = world().broadcast(folder ? folder->path() : "");
  const Dim size = world().size();
  const Dim rank = world().rank();
  const Shape global{3 * size, 2 * size};
  Tensor rows(Device::cpu, DType::f32, {3, 2 * size});
  for (Dim i = 0; i < rows.view().numel(); ++i) {
    rows.view().data<float>()[i] = static_cast<float>(rank * rows.view().numel() + i);
  }
  io::CheckpointMeta meta;
  meta.step = 42;
  const io::Slab slab{"model/a", global, {{3 * rank, 0}, {3, 2 * size}}, rows.view()};

  io::save_checkpoint(world(), directory, meta, std::span(&slab, 1));

  Tensor columns = filled_tensor(DType::f32, {3 * size, 2}, -1);
  const io::SlabTarget target{"model/a", global, {{0, 2 * rank}, {3 * size, 2}}, columns.view()};
  const io::CheckpointReader reader(directory);
  EXPECT_EQ(reader.meta().step, 42);
  EXPECT_EQ(reader.files().size(), static_cast<std::size_t>(size));
  reader.read(std::span(&target, 1));
  for (Dim r = 0; r < 3 * size; ++r) {
    for (Dim c = 0; c < 2; ++c) {
      EXPECT_EQ(columns.view().data<float>()[2 * r + c],
                static_cast<float>(r * 2 * size + 2 * rank + c));
    }
  }
  world().barrier();
}

}  // namespace
}  // namespace hyperslab::test
