// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/timing.hpp"
#include "hyperslab/io/trace.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

io::RankInfo info_of(int rank) {
  io::RankInfo info;
  info.rank = rank;
  info.world_size = 2;
  info.host = "n" + std::to_string(rank);
  info.device = "cpu";
  info.pipeline = rank;
  info.commit = "abc";
  info.start_time = "2026-01-02T03:04:05Z";
  info.groups = {{comm::GroupRole::pipeline, 2, {0, 1}}, {comm::GroupRole::world, 2, {0, 1}}};
  return info;
}

/// Rank 1 began 0.25 s after rank 0 on rank 0's clock, its own clock is 1000 s behind.
void write_rank(const std::string& folder, int rank) {
  io::TimingWriter writer(folder, info_of(rank));
  const bool second = rank == 1;
  writer.append_traced(
      {4, second ? 4000.25 : 5000.0, second ? 1000.0 : 0.0, second ? 2e-6 : 0.0, second ? 3 : 0});
  writer.append_events(4, {{"ffn", "compute", 0, 0.125, 0.25},
                           {"forward", "compute", 0, 0.0, 0.5},
                           {"reduce", "data", -1, 0.0, 0.5}});
  // The exchange of microbatch 0: rank 0 sends at 0.5 s, rank 1 has it at 0.75 s of that clock.
  writer.append_operations(
      4, {{"pipeline", "exchange", 7, 4096, 0, second ? 0.125 : 0.5, 0.5, second ? 0.5 : 0.75},
          {"world", "all_reduce", 3, 8, -1, 0.8, 0.8, 1.0},
          {"world", "all_reduce", 4, 8, -1, 0.9, 0.9, 1.1}});
  writer.append_messages(4, {{"pipeline", 7, !second, 1 - rank, 4096}}, info_of(rank).groups);
  writer.append_memory(4, 0.5, 1024, "activations");
}

/// A rank on a GPU: the host enqueues ahead of the device, whose second stream sums.
void write_gpu_rank(const std::string& folder) {
  io::RankInfo info = info_of(0);
  info.world_size = 1;
  info.device = "NVIDIA H200";
  io::TimingWriter writer(folder, info);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  writer.append_traced({4, 5000.0, 0.0, 0.0, 0});
  writer.append_events(4, {{"forward", "compute", 0, 0.0, 0.125}});
  writer.append_kernels(4,
                        {{.name = "gemm",
                          .stream = "compute",
                          .phase = Phase::forward,
                          .component = "ffn",
                          .microbatch = 0,
                          .begin_seconds = 5000.25,
                          .end_seconds = 5000.5},
                         {.name = "ncclDevKernel",
                          .stream = "pipeline",
                          .phase = Phase::pipeline_comm,
                          .operation = 0,
                          .begin_seconds = 5000.5,
                          .end_seconds = 5001.0},
                         {.name = "copy device to host",
                          .stream = "compute",
                          .bytes = 64,
                          .begin_seconds = 5000.5,
                          .end_seconds = 5000.75}},
                        5000.0);
  writer.append_operations(4, {{"pipeline", "exchange", 7, 4096, 0, 0.5, kUnknown, 1.0}});
}

json read(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<json> of_kind(const json& trace, const std::string& kind) {
  std::vector<json> found;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == kind) found.push_back(event);
  }
  return found;
}

class TraceWriter : public testing::Test {
 protected:
  TraceWriter() {
    for (int rank = 0; rank < 2; ++rank) write_rank(start(), rank);
  }
  [[nodiscard]] std::string start() const { return folder_.path() + "/timing/start_0002"; }
  [[nodiscard]] std::string output() const { return folder_.path() + "/trace.json"; }
  io::TraceSummary write() { return io::write_trace(folder_.path(), output()); }
  TempFolder folder_;
};

TEST_F(TraceWriter, AllRanksAreOnOneClock) {
  const io::TraceSummary summary = write();
  const json trace = read(output());

  EXPECT_EQ(summary.ranks, 2);
  EXPECT_THAT(summary.steps, ElementsAre(4));
  EXPECT_EQ(summary.lost, 3);
  EXPECT_EQ(summary.clock_error_seconds, 2e-6);
  EXPECT_EQ(summary.start, start());
  std::map<std::pair<int, std::string>, std::vector<double>> spans;
  for (const json& span : of_kind(trace, "X")) {
    if (span["tid"] == 1) spans[{span["pid"], span["name"]}] = {span["ts"], span["dur"]};
  }
  EXPECT_EQ(spans.size(), 4U) << "what is on the track of a group is no computation";
  EXPECT_THAT((spans[{0, "forward"}]), ElementsAre(0, 500000));
  EXPECT_THAT((spans[{0, "ffn"}]), ElementsAre(125000, 125000));
  EXPECT_THAT((spans[{1, "forward"}]), ElementsAre(250000, 500000));
  EXPECT_EQ(summary.events, 10);
}

TEST_F(TraceWriter, OperationsThatOverlapHaveTracksOfTheirOwn) {
  (void)write();
  const json trace = read(output());
  std::map<std::pair<int, int>, std::string> names;
  for (const json& meta : of_kind(trace, "M")) {
    if (meta["name"] == "thread_name") names[{meta["pid"], meta["tid"]}] = meta["args"]["name"];
  }
  std::vector<std::string> tracks;
  for (const json& span : of_kind(trace, "X")) {
    if (span["pid"] == 0 && span["name"] == "all_reduce") {
      tracks.push_back(names[{0, span["tid"]}]);
    }
  }
  EXPECT_THAT(tracks, ElementsAre("world", "world 2"));
}

TEST_F(TraceWriter, AnArrowLeadsFromTheSendToTheReceive) {
  const io::TraceSummary summary = write();
  const json trace = read(output());
  const auto starts = of_kind(trace, "s");
  const auto ends = of_kind(trace, "f");

  EXPECT_EQ(summary.flows, 1);
  ASSERT_EQ(starts.size(), 1U);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(starts[0]["pid"], 0);
  EXPECT_EQ(ends[0]["pid"], 1);
  EXPECT_EQ(starts[0]["id"], ends[0]["id"]);
  EXPECT_EQ(ends[0]["bp"], "e");
  EXPECT_NEAR(starts[0]["ts"].get<double>(), 0.5e6, 0.01);
  EXPECT_NEAR(ends[0]["ts"].get<double>(), 0.75e6, 0.01);
}

TEST(TraceOfAGpu, StreamsHaveTracksOfTheirOwn) {
  const TempFolder folder;
  write_gpu_rank(folder.path() + "/timing/start_0001");

  const io::TraceSummary summary = io::write_trace(folder.path(), folder.path() + "/trace.json");
  const json trace = read(folder.path() + "/trace.json");

  EXPECT_EQ(summary.events, 5);
  std::map<int, std::string> tracks;
  for (const json& meta : of_kind(trace, "M")) {
    if (meta["name"] == "thread_name") tracks[meta["tid"]] = meta["args"]["name"];
  }
  std::map<std::string, json> spans;
  for (const json& span : of_kind(trace, "X")) spans[span["name"]] = span;
  EXPECT_EQ(tracks[spans["forward"]["tid"]], "host");
  EXPECT_EQ(tracks[spans["gemm"]["tid"]], "GPU compute");
  EXPECT_EQ(tracks[spans["copy device to host"]["tid"]], "GPU compute");
  EXPECT_EQ(tracks[spans["ncclDevKernel"]["tid"]], "GPU pipeline");
  EXPECT_EQ(tracks[spans["exchange"]["tid"]], "pipeline");
  EXPECT_EQ(spans["gemm"]["ts"], 250000);
  EXPECT_EQ(spans["gemm"]["dur"], 250000);
  EXPECT_EQ(spans["gemm"]["args"],
            json({{"step", 4}, {"phase", "forward"}, {"component", "ffn"}, {"microbatch", 0}}));
  EXPECT_EQ(spans["copy device to host"]["args"]["bytes"], 64);
  EXPECT_FALSE(spans["exchange"]["args"].contains("waited_for_seconds")) << "no one saw the wait";
}

TEST_F(TraceWriter, RanksAndMemoryAreNamed) {
  (void)write();
  const json trace = read(output());
  std::vector<std::string> processes;
  for (const json& meta : of_kind(trace, "M")) {
    if (meta["name"] == "process_name") processes.push_back(meta["args"]["name"]);
  }
  EXPECT_THAT(processes, ElementsAre("rank 0 (data 0, tensor 0, pipeline 0) n0 cpu",
                                     "rank 1 (data 0, tensor 0, pipeline 1) n1 cpu"));
  const auto counters = of_kind(trace, "C");
  ASSERT_EQ(counters.size(), 2U);
  EXPECT_EQ(counters[1]["args"]["bytes"], 1024);
  EXPECT_EQ(counters[1]["ts"], 750000);
}

void expect_refused(const std::string& run, const std::string& words) {
  try {
    (void)io::write_trace(run, run + "/out.json");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
  EXPECT_FALSE(std::filesystem::exists(run + "/out.json"));
}

TEST_F(TraceWriter, TheNewestStartThatTracedAStepIsTaken) {
  const std::string newer = folder_.path() + "/timing/start_0003";
  for (int rank = 0; rank < 2; ++rank) {
    const io::TimingWriter untraced(newer, info_of(rank));
  }

  EXPECT_EQ(write().start, start());
}

TEST_F(TraceWriter, AMissingRankIsReported) {
  std::filesystem::remove(start() + "/rank_00001.h5");
  expect_refused(folder_.path(), "holds 1 of 2 rank_*.h5");
}

TEST_F(TraceWriter, ADamagedFileIsNamed) {
  std::ofstream(start() + "/rank_00001.h5") << "no HDF5";
  expect_refused(folder_.path(), "rank_00001.h5: cannot read these timings");
}

TEST(TraceOfNothing, SaysHowToTrace) {
  const TempFolder folder;
  expect_refused(folder.path(), "holds no timings of a start");
  for (int rank = 0; rank < 2; ++rank) {
    const io::TimingWriter untraced(folder.path() + "/timing/start_0001", info_of(rank));
  }
  expect_refused(folder.path(), "timing.trace_steps=[STEP,...]");
}

}  // namespace
}  // namespace hyperslab::test
