// SPDX-License-Identifier: Apache-2.0
#include "timing/timing_tables.hpp"

#include <cstdint>
#include <string>

namespace hyperslab::io {
namespace {

using Seconds = std::vector<double>;
using Integers = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

}  // namespace

std::vector<Column> step_columns() {
  std::vector<Column> columns{
      {"step", "1", "number of the training step, from 1", Integers{}},
      {"step_seconds", "s", "wall time of the whole step on this rank", Seconds{}}};
  const auto add = [&](const PhaseColumn& phase) {
    columns.push_back({phase.name, "s", phase.description, Seconds{}});
  };
  for (const PhaseColumn& phase : kBeforeReduce) add(phase);
  columns.push_back({"reduce_seconds", "s",
                     "reductions of gradients; those in progress at once are added up", Seconds{}});
  for (const PhaseColumn& phase : kAfterReduce) add(phase);
  columns.push_back({"tokens", "1", "tokens that this rank trained on in the step", Integers{}});
  columns.push_back({"memory_peak_bytes", "bytes", "most memory in use so far", Integers{}});
  columns.push_back({"memory_now_bytes", "bytes", "memory in use at the end", Integers{}});
  columns.push_back({"reduce_busy_seconds", "s",
                     "time with at least one reduction of gradients in progress", Seconds{}});
  return columns;
}

std::vector<Column> traffic_columns() {
  return {{"calls", "1", "operations of the group in the step", Integers{}},
          {"bytes", "bytes", "bytes of the buffers handed in", Integers{}},
          {"seconds", "s", "operations from call to end; NaN: not measured", Seconds{}},
          {"exposed_seconds", "s", "waiting for the group; NaN: not measured", Seconds{}},
          {"arrival_seconds", "s",
           "mean moment of this rank's calls, since it left the newest operation of all ranks "
           "before the step; NaN: not measured",
           Seconds{}}};
}

std::vector<Column> load_columns(std::size_t width) {
  return {{"step", "1", "number of the training step, from 1", Integers{}},
          {"loads", "1",
           "tokens of the step that took each expert, over all ranks: the experts of the first "
           "layer that has any, then those of the next",
           std::vector<float>{}, width}};
}

std::vector<Column> event_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"name", "", "what was done", Texts{}},
          {"stream", "", "where it was done: compute, or a group's communication", Texts{}},
          {"microbatch", "1", "microbatch of the step, -1: none", Integers{}},
          {"start_seconds", "s", "since the beginning of the step", Seconds{}},
          {"end_seconds", "s", "since the beginning of the step", Seconds{}}};
}

std::vector<Column> traced_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"start_seconds", "s", "when it began, on the monotonic clock of this host", Seconds{}},
          {"clock_offset_seconds", "s", "to be added for the clock of rank 0's host", Seconds{}},
          {"clock_error_seconds", "s", "most that the offset is off", Seconds{}},
          {"lost", "1", "events, operations and messages that found no room", Integers{}}};
}

std::vector<Column> operation_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"group", "", "role of the group", Texts{}},
          {"operation", "", "all_reduce, ..., or exchange for sends and receives", Texts{}},
          {"ticket", "1", "number in its group; of collectives equal on all members", Integers{}},
          {"bytes", "bytes", "of the buffers handed in", Integers{}},
          {"microbatch", "1", "microbatch at the wait, -1: none", Integers{}},
          {"call_seconds", "s",
           "when this rank called, on a GPU when its stream came to it, since the beginning of the "
           "step",
           Seconds{}},
          {"wait_seconds", "s",
           "when it began to wait, since the beginning of the step; NaN on a GPU", Seconds{}},
          {"end_seconds", "s", "when it was complete, since the beginning of the step", Seconds{}}};
}

std::vector<Column> message_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"group", "", "role of the group", Texts{}},
          {"ticket", "1", "of the exchange in /operations", Integers{}},
          {"sends", "1", "1: sent, 0: received", Integers{}},
          {"peer", "1", "world rank of the other end", Integers{}},
          {"bytes", "bytes", "of the message", Integers{}}};
}

std::vector<Column> kernel_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"name", "", "of the kernel; or a copy or fill", Texts{}},
          {"stream", "", "of the GPU: compute, copy, a group, or its number", Texts{}},
          {"phase", "", "in which the host enqueued it", Texts{}},
          {"component", "", "in which the host enqueued it", Texts{}},
          {"microbatch", "1", "for which the host enqueued it, -1: none", Integers{}},
          {"bytes", "bytes", "of copies and fills", Integers{}},
          {"start_seconds", "s", "since the beginning of the step", Seconds{}},
          {"end_seconds", "s", "since the beginning of the step", Seconds{}}};
}

std::vector<Column> life_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"category", "", "parameters, gradients, optimizer, activations or workspace", Texts{}},
          {"label", "", "of the allocation", Texts{}},
          {"layer", "1", "of the model, -1: none", Integers{}},
          {"slot", "1", "of a microbatch, -1: none", Integers{}},
          {"bytes", "bytes", "with the gap to the next allocation", Integers{}},
          {"start_seconds", "s", "first use, since the beginning of the step", Seconds{}},
          {"end_seconds", "s", "last use, since the beginning of the step", Seconds{}}};
}

std::vector<Column> memory_columns() {
  return {{"step", "1", "number of the traced step", Integers{}},
          {"time_seconds", "s", "since the beginning of the step", Seconds{}},
          {"bytes", "bytes", "memory in use from then on", Integers{}},
          {"label", "", "what was taken or given back", Texts{}}};
}

}  // namespace hyperslab::io
