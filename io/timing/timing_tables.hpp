// SPDX-License-Identifier: Apache-2.0
// The tables of a rank's timing file.
#pragma once

#include <vector>

#include "hyperslab/core/recorder.hpp"
#include "timing/columns.hpp"

namespace hyperslab::io {

/// A phase's column; the phases that have none are part of step_seconds alone.
struct PhaseColumn {
  const char* name;
  Phase phase;
  const char* description;
};
inline constexpr PhaseColumn kBeforeReduce[] = {
    {"data_seconds", Phase::data, "waiting for samples and copying them to the device"},
    {"forward_seconds", Phase::forward, "forward passes of all microbatches"},
    {"backward_seconds", Phase::backward, "backward passes of all microbatches"},
    {"optimizer_seconds", Phase::optimizer, "clipping and the update of the parameters"}};
inline constexpr PhaseColumn kAfterReduce[] = {
    {"reduce_exposed_seconds", Phase::reduce_exposed,
     "waiting for reductions of gradients that nothing else covers"},
    {"tensor_comm_seconds", Phase::tensor_comm, "communication of the tensor group"},
    {"context_comm_seconds", Phase::context_comm,
     "exchanges among ranks that hold other tokens of the same samples"},
    {"expert_comm_seconds", Phase::expert_comm, "tokens on their way to experts and back"},
    {"pipeline_comm_seconds", Phase::pipeline_comm, "sending and receiving between stages"},
    {"pipeline_idle_seconds", Phase::pipeline_idle, "waiting for another stage of the pipeline"},
    {"wait_seconds", Phase::wait, "waiting for slower ranks"},
    {"checkpoint_seconds", Phase::checkpoint, "saving a checkpoint after the step"}};

[[nodiscard]] std::vector<Column> step_columns();
[[nodiscard]] std::vector<Column> traffic_columns();  ///< columns of a group's table
/// Columns of the loads of experts, of so many values a row.
[[nodiscard]] std::vector<Column> load_columns(std::size_t width);
// The next tables hold traced steps only.
[[nodiscard]] std::vector<Column> traced_columns();
[[nodiscard]] std::vector<Column> event_columns();
[[nodiscard]] std::vector<Column> operation_columns();
[[nodiscard]] std::vector<Column> message_columns();
[[nodiscard]] std::vector<Column> kernel_columns();
[[nodiscard]] std::vector<Column> memory_columns();
[[nodiscard]] std::vector<Column> life_columns();

}  // namespace hyperslab::io
