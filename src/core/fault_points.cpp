// SPDX-License-Identifier: Apache-2.0
// The one table of fault points and actions.
#include <fmt/format.h>

#include <array>

#include "hyperslab/core/fault.hpp"

namespace hyperslab::fault {
namespace {

constexpr std::array kPoints = {
    Point{"start.program", "before MPI starts; the launcher says which rank this is"},
    Point{"start.world", "MPI has started, the watchdog has not"},
    Point{"start.data", "before the token files are opened"},
    Point{"start.memory", "before the model takes its memory"},
    Point{"start.resume", "before a checkpoint is looked for"},
    Point{"start.directories", "before the first change on the disk"},
    Point{"start.records", "before metrics and timing files are opened"},
    Point{"checkpoint.load", "before a checkpoint is loaded"},
    Point{"step.load", "before a batch is loaded"},
    Point{"step.forward", "before the forward pass of a microbatch"},
    Point{"step.backward", "before the backward pass of a microbatch"},
    Point{"collective.call", "before a collective or an exchange is called"},
    Point{"step.gradients", "this rank's gradients of a step, after their sum", Kind::numbers},
    Point{"step.optimizer", "before the update of the parameters"},
    Point{"step.parameters", "this rank's parameters, after their update", Kind::bits},
    Point{"step.validation", "before a validation"},
    Point{"records.metrics", "before a line of metrics.jsonl", Kind::records},
    Point{"records.timing", "before a row of a timing file", Kind::records},
    Point{"checkpoint.prepare", "before a checkpoint makes its folder"},
    Point{"checkpoint.snapshot", "before the state is copied for a checkpoint"},
    Point{"checkpoint.write", "before this rank's file of a checkpoint is written"},
    Point{"checkpoint.commit", "before a checkpoint gets its manifest and its name"},
    Point{"checkpoint.prune", "before old checkpoints are removed"},
    Point{"file.create", "creating a file", Kind::call},
    Point{"file.reserve", "reserving room for a file", Kind::call},
    Point{"file.resize", "setting the size of a file", Kind::call},
    Point{"file.write", "writing to a file", Kind::write},
    Point{"file.sync", "fsync of a file", Kind::call},
    Point{"file.rename", "renaming or exchanging files and folders", Kind::call},
    Point{"folder.make", "making a folder", Kind::call},
    Point{"folder.sync", "fsync of a folder", Kind::call},
    Point{"tree.remove", "removing a file or folder", Kind::call},
    Point{"end.run", "after the last checkpoint, while the watchdog lives"},
    Point{"end.world", "the watchdog has ended, MPI has not"},
};

constexpr std::array kActions = {
    ActionText{Action::kill, "kill", "the process gets SIGKILL"},
    ActionText{Action::stop, "stop", "the process gets SIGSTOP"},
    ActionText{Action::delay, "delay_", "the thread sleeps so many seconds, as in delay_2.5"},
    ActionText{Action::error, "error", "the call fails with EIO; elsewhere an error of storage"},
    ActionText{Action::no_space, "no_space", "as error, with ENOSPC"},
    ActionText{Action::short_write, "short_write", "about half of the bytes are written at once"},
    ActionText{Action::nan, "nan", "the numbers become NaN"},
    ActionText{Action::flip, "flip", "one bit flips"},
};

/// The actions that a point has beside or in place of the common ones.
std::string_view special(Kind kind) {
  switch (kind) {
    case Kind::place:
    case Kind::call: return "";
    case Kind::records: return " (no error, no_space)";
    case Kind::write: return " (also short_write)";
    case Kind::numbers: return " (also nan)";
    case Kind::bits: return " (also flip)";
  }
  return "";
}

}  // namespace

std::span<const Point> points() { return kPoints; }
std::span<const ActionText> actions() { return kActions; }

bool fits(Action action, const Point& point) {
  switch (action) {
    case Action::kill:
    case Action::stop:
    case Action::delay: return true;
    case Action::error:
    case Action::no_space: return point.kind != Kind::records;
    case Action::short_write: return point.kind == Kind::write;
    case Action::nan: return point.kind == Kind::numbers;
    case Action::flip: return point.kind == Kind::bits;
  }
  return false;
}

std::string description() {
  std::string text =
      "Faults on purpose, to test how a job ends and what it leaves:\n\n"
      "  HYPERSLAB_FAULT=POINT[@PATH][#N]:RANK:STEP:ACTION[,...] mpirun ... hyperslab train "
      "DECK\n\n"
      "POINT  one of those below, or * for every call on a file or folder\n"
      "@PATH  only calls on a path that contains this text\n"
      "#N     only the N-th time, counted from 1 where all else matches; without it every time\n"
      "RANK   a number, or * for all ranks\n"
      "STEP   a number, 0 before the first step, or * for any\n\n";
  for (const ActionText& each : kActions) {
    const bool delays = each.action == Action::delay;
    text += fmt::format("  {:<20}{}\n", delays ? "delay_SECONDS" : each.name, each.text);
  }
  text += "\n";
  for (const Point& point : kPoints) {
    text += fmt::format("  {:<20}{}{}\n", point.name, point.text, special(point.kind));
  }
  return text;
}

}  // namespace hyperslab::fault
