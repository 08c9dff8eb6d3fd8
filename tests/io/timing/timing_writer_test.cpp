// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "hdf5/handles.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/timing.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {
namespace {

using io::hdf5::Handle;

Handle open_dataset(const Handle& file, const std::string& path) {
  return {H5Dopen2(file.get(), path.c_str(), H5P_DEFAULT), H5Dclose};
}

std::size_t rows_of(const Handle& dataset) {
  const Handle space(H5Dget_space(dataset.get()), H5Sclose);
  EXPECT_EQ(H5Sget_simple_extent_ndims(space.get()), 1);
  return static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get()));
}

std::vector<double> numbers(const Handle& file, const std::string& path) {
  const Handle dataset = open_dataset(file, path);
  EXPECT_TRUE(dataset) << path;
  std::vector<double> values(rows_of(dataset));
  EXPECT_GE(H5Dread(dataset.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
            0)
      << path;
  return values;
}

std::vector<std::string> texts(const Handle& file, const std::string& path) {
  const Handle dataset = open_dataset(file, path);
  std::vector<char*> values(rows_of(dataset));
  const Handle type(H5Dget_type(dataset.get()), H5Tclose);
  const Handle space(H5Dget_space(dataset.get()), H5Sclose);
  EXPECT_GE(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  std::vector<std::string> out(values.begin(), values.end());
  H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, values.data());
  return out;
}

std::int64_t integer_attribute(const Handle& file, const char* name) {
  const Handle attribute(H5Aopen(file.get(), name, H5P_DEFAULT), H5Aclose);
  std::int64_t value = -1;
  EXPECT_GE(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value), 0) << name;
  return value;
}

std::string text_attribute(const Handle& file, const char* name) {
  const Handle attribute(H5Aopen(file.get(), name, H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  char* value = nullptr;
  EXPECT_GE(H5Aread(attribute.get(), type.get(), &value), 0) << name;
  std::string text = value == nullptr ? "" : value;
  H5free_memory(value);
  return text;
}

io::RankInfo some_info() {
  return {.rank = 3,
          .world_size = 8,
          .host = "n12",
          .device = "cpu",
          .data = 1,
          .pipeline = 2,
          .context = 0,
          .tensor = 1,
          .commit = "abc",
          .start_time = "2026-01-02T03:04:05Z",
          .threads = 6,
          .schedule = "zero_bubble",
          .zero = 1,
          .sequence = true,
          .groups = {{comm::GroupRole::data, 2, {3, 7}}, {comm::GroupRole::world, 8}}};
}

io::TimingRow row_of(int step) {
  io::TimingRow row;
  row.times.step = step;
  row.times.step_seconds = step + 0.5;
  for (std::size_t p = 0; p < row.times.phase_seconds.size(); ++p) {
    row.times.phase_seconds[p] = step * 100.0 + static_cast<double>(p);
  }
  row.times.reduce_seconds = step + 0.25;
  row.times.reduce_busy_seconds = step + 0.125;
  row.groups[0] = {step, std::int64_t{1} << 41, step + 0.5, step + 0.75, step + 0.25};
  row.groups[1] = {1, 32, 0.5, step * 2.0};
  row.tokens = 4096;
  row.memory_peak_bytes = (std::int64_t{1} << 40) + step;
  row.memory_now_bytes = step;
  return row;
}

TEST(TimingWriter, EveryColumnComesBackWithEqualLength) {
  const TempFolder folder;
  constexpr int steps = 1203;  // more than two chunks, not a multiple of flush_rows
  {
    io::TimingWriter writer(folder.path(), some_info());
    for (int step = 1; step <= steps; ++step) writer.append(row_of(step));
  }
  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  ASSERT_TRUE(file);
  const auto at_7 = [&](const char* column) {
    const auto values = numbers(file, std::string("/steps/") + column);
    EXPECT_EQ(values.size(), static_cast<std::size_t>(steps)) << column;
    return values.at(6);
  };
  const auto phase = [](Phase p) { return 700.0 + static_cast<double>(p); };
  EXPECT_EQ(at_7("step"), 7);
  EXPECT_EQ(at_7("step_seconds"), 7.5);
  EXPECT_EQ(at_7("data_seconds"), phase(Phase::data));
  EXPECT_EQ(at_7("forward_seconds"), phase(Phase::forward));
  EXPECT_EQ(at_7("backward_seconds"), phase(Phase::backward));
  EXPECT_EQ(at_7("optimizer_seconds"), phase(Phase::optimizer));
  EXPECT_EQ(at_7("reduce_seconds"), 7.25);
  EXPECT_EQ(at_7("reduce_busy_seconds"), 7.125);
  EXPECT_EQ(at_7("reduce_exposed_seconds"), phase(Phase::reduce_exposed));
  EXPECT_EQ(at_7("tensor_comm_seconds"), phase(Phase::tensor_comm));
  EXPECT_EQ(at_7("pipeline_comm_seconds"), phase(Phase::pipeline_comm));
  EXPECT_EQ(at_7("pipeline_idle_seconds"), phase(Phase::pipeline_idle));
  EXPECT_EQ(at_7("wait_seconds"), phase(Phase::wait));
  EXPECT_EQ(at_7("checkpoint_seconds"), phase(Phase::checkpoint));
  EXPECT_EQ(at_7("tokens"), 4096);
  EXPECT_EQ(at_7("memory_peak_bytes"), 0x1p40 + 7);
  EXPECT_EQ(at_7("memory_now_bytes"), 7);
  EXPECT_EQ(numbers(file, "/steps/step").back(), steps);
}

TEST(TimingWriter, EveryGroupHasARowForEveryStep) {
  const TempFolder folder;
  {
    io::TimingWriter writer(folder.path(), some_info(), 10);
    for (int step = 1; step <= 23; ++step) writer.append(row_of(step));
  }
  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  ASSERT_TRUE(file);
  const auto at_7 = [&](const char* column) {
    const auto values = numbers(file, std::string("/groups/") + column);
    EXPECT_EQ(values.size(), 23U) << column;
    return values.at(6);
  };
  EXPECT_EQ(at_7("data/calls"), 7);
  EXPECT_EQ(at_7("data/bytes"), 0x1p41);
  EXPECT_EQ(at_7("data/seconds"), 7.5);
  EXPECT_EQ(at_7("data/exposed_seconds"), 7.75);
  EXPECT_EQ(at_7("data/arrival_seconds"), 7.25);
  EXPECT_EQ(at_7("world/calls"), 1);
  EXPECT_EQ(at_7("world/bytes"), 32);
  EXPECT_EQ(at_7("world/seconds"), 0.5);
  EXPECT_EQ(at_7("world/exposed_seconds"), 14);
  const Handle data(H5Gopen2(file.get(), "/groups/data", H5P_DEFAULT), H5Gclose);
  EXPECT_EQ(integer_attribute(data, "size"), 2);
  EXPECT_EQ(numbers(file, "/groups/data/ranks"), (std::vector<double>{3, 7}));
  EXPECT_FALSE(open_dataset(file, "/groups/world/ranks")) << "all of them";
}

/// All values of a dataset of two dimensions, and its width.
std::pair<std::vector<float>, hsize_t> matrix(const Handle& file, const std::string& path) {
  const Handle dataset = open_dataset(file, path);
  const Handle space(H5Dget_space(dataset.get()), H5Sclose);
  hsize_t shape[2] = {0, 0};
  EXPECT_EQ(H5Sget_simple_extent_dims(space.get(), shape, nullptr), 2);
  std::vector<float> values(shape[0] * shape[1]);
  EXPECT_GE(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
            0);
  return {values, shape[1]};
}

TEST(TimingWriter, LoadsOfExpertsAreRowsOfAllLayers) {
  const TempFolder folder;
  io::RankInfo info = some_info();
  info.expert_layers = 2;
  info.experts = 3;
  constexpr int steps = 1100;  // more than two chunks
  {
    io::TimingWriter writer(folder.path(), info, 50);
    for (int step = 1; step <= steps; ++step) {
      if (step % 2 == 0) {
        writer.append_loads(step, std::vector<double>{1, 2, 3, 4, 5, step * 1.0});
      }
      writer.append(row_of(step));
    }
    const std::vector<double> narrow(5);
    EXPECT_ANY_THROW(writer.append_loads(steps + 1, narrow));
  }
  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  ASSERT_TRUE(file);
  const std::vector<double> kept = numbers(file, "/experts/step");
  ASSERT_EQ(kept.size(), 550U);
  EXPECT_EQ(kept[549], 1100);
  const auto [loads, width] = matrix(file, "/experts/loads");
  EXPECT_EQ(width, 6U);
  ASSERT_EQ(loads.size(), 550U * 6);
  for (std::size_t row = 0; row < kept.size(); ++row) {
    ASSERT_EQ(loads[row * 6], 1);
    ASSERT_EQ(loads[row * 6 + 5], kept[row]);
  }
  const Handle dataset = open_dataset(file, "/experts/loads");
  EXPECT_EQ(integer_attribute(dataset, "layers"), 2);
  EXPECT_EQ(integer_attribute(dataset, "experts"), 3);
  EXPECT_EQ(text_attribute(dataset, "units"), "1");
}

TEST(TimingWriter, WithoutExpertsThereIsNoTableOfLoads) {
  const TempFolder folder;
  {
    io::TimingWriter writer(folder.path(), some_info());
    writer.append_loads(1, {});
  }
  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  ASSERT_TRUE(file);
  EXPECT_EQ(H5Lexists(file.get(), "/experts", H5P_DEFAULT), 0);
}

TEST(TimingWriter, AttributesSayWhichRankItIs) {
  const TempFolder folder;
  { const io::TimingWriter writer(folder.path() + "/start_0001", some_info()); }

  const Handle file = io::hdf5::open_file(folder.path() + "/start_0001/rank_00003.h5");
  ASSERT_TRUE(file);
  EXPECT_EQ(integer_attribute(file, "rank"), 3);
  EXPECT_EQ(integer_attribute(file, "world_size"), 8);
  EXPECT_EQ(integer_attribute(file, "data"), 1);
  EXPECT_EQ(integer_attribute(file, "pipeline"), 2);
  EXPECT_EQ(integer_attribute(file, "context"), 0);
  EXPECT_EQ(integer_attribute(file, "tensor"), 1);
  EXPECT_EQ(text_attribute(file, "host"), "n12");
  EXPECT_EQ(text_attribute(file, "device"), "cpu");
  EXPECT_EQ(text_attribute(file, "commit"), "abc");
  EXPECT_EQ(text_attribute(file, "start_time"), "2026-01-02T03:04:05Z");
  EXPECT_EQ(integer_attribute(file, "threads"), 6);
  EXPECT_EQ(text_attribute(file, "schedule"), "zero_bubble");
  EXPECT_EQ(integer_attribute(file, "zero"), 1);
  EXPECT_EQ(integer_attribute(file, "sequence"), 1);
  EXPECT_TRUE(numbers(file, "/steps/step").empty());
}

TEST(TimingWriter, AttributesSayWhatFileAndColumnsHold) {
  const TempFolder folder;
  { const io::TimingWriter writer(folder.path(), some_info()); }

  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  ASSERT_TRUE(file);
  EXPECT_EQ(text_attribute(file, "format"), "hyperslab timing");
  EXPECT_EQ(integer_attribute(file, "format_version"), 1);
  EXPECT_EQ(text_attribute(file, "layout"), "data 2");
  const auto units = [&](const char* column) {
    const Handle dataset = open_dataset(file, column);
    EXPECT_FALSE(text_attribute(dataset, "description").empty()) << column;
    return text_attribute(dataset, "units");
  };
  EXPECT_EQ(units("/steps/step"), "1");
  EXPECT_EQ(units("/steps/backward_seconds"), "s");
  EXPECT_EQ(units("/steps/memory_peak_bytes"), "bytes");
  EXPECT_EQ(units("/groups/data/bytes"), "bytes");
  EXPECT_EQ(units("/groups/world/exposed_seconds"), "s");
  EXPECT_EQ(units("/events/start_seconds"), "s");
  EXPECT_EQ(units("/memory/bytes"), "bytes");
}

TEST(TimingWriter, EventsAndMemoryOfTracedSteps) {
  const TempFolder folder;
  io::TimingWriter first(folder.path(), some_info());
  first.append_events(5, {{"forward", "compute", 0, 0.5, 1.5}, {"reduce", "data", -1, 1, 2}});
  first.append_memory(5, 0.75, 123456789012, "blocks.0.attention scores");
  io::TimingWriter writer = std::move(first);
  writer.append_events(9, {{"backward", "compute", 1, 3, 4}});
  writer.flush();

  // As another process sees it while it is written.
  std::filesystem::copy(folder.path() + "/rank_00003.h5", folder.path() + "/copy.h5");
  const Handle file = io::hdf5::open_file(folder.path() + "/copy.h5");
  ASSERT_TRUE(file);
  EXPECT_EQ(numbers(file, "/events/step"), (std::vector<double>{5, 5, 9}));
  EXPECT_EQ(texts(file, "/events/name"),
            (std::vector<std::string>{"forward", "reduce", "backward"}));
  EXPECT_EQ(texts(file, "/events/stream"),
            (std::vector<std::string>{"compute", "data", "compute"}));
  EXPECT_EQ(numbers(file, "/events/microbatch"), (std::vector<double>{0, -1, 1}));
  EXPECT_EQ(numbers(file, "/events/start_seconds"), (std::vector<double>{0.5, 1, 3}));
  EXPECT_EQ(numbers(file, "/events/end_seconds"), (std::vector<double>{1.5, 2, 4}));
  EXPECT_EQ(numbers(file, "/memory/step"), std::vector<double>{5});
  EXPECT_EQ(numbers(file, "/memory/time_seconds"), std::vector<double>{0.75});
  EXPECT_EQ(numbers(file, "/memory/bytes"), std::vector<double>{123456789012});
  EXPECT_EQ(texts(file, "/memory/label"), std::vector<std::string>{"blocks.0.attention scores"});
}

TEST(TimingWriter, OperationsMessagesAndLivesOfTracedSteps) {
  const TempFolder folder;
  const io::RankInfo info = some_info();
  {
    io::TimingWriter writer(folder.path(), info);
    writer.append_traced({5, 1234.5, -0.25, 1e-6, 2});
    writer.append_operations(5, {{"data", "all_reduce", 9, 4096, -1, 0.5, 0.75, 1.5}});
    writer.append_messages(5, {{"data", 9, true, 1, 64}, {"data", 9, false, 0, 32}}, info.groups);
    writer.append_lives(5, {{"activations", "blocks.1.mlp.pre", 1, 0, 1 << 20, 0.5, 2.5}});
  }
  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  ASSERT_TRUE(file);
  const auto only = [&](const char* column) {
    const auto values = numbers(file, column);
    EXPECT_EQ(values.size(), 1U) << column;
    return values.at(0);
  };
  EXPECT_EQ(only("/traced/step"), 5);
  EXPECT_EQ(only("/traced/start_seconds"), 1234.5);
  EXPECT_EQ(only("/traced/clock_offset_seconds"), -0.25);
  EXPECT_EQ(only("/traced/clock_error_seconds"), 1e-6);
  EXPECT_EQ(only("/traced/lost"), 2);
  EXPECT_EQ(texts(file, "/operations/group"), std::vector<std::string>{"data"});
  EXPECT_EQ(texts(file, "/operations/operation"), std::vector<std::string>{"all_reduce"});
  EXPECT_EQ(only("/operations/ticket"), 9);
  EXPECT_EQ(only("/operations/bytes"), 4096);
  EXPECT_EQ(only("/operations/microbatch"), -1);
  EXPECT_EQ(only("/operations/call_seconds"), 0.5);
  EXPECT_EQ(only("/operations/wait_seconds"), 0.75);
  EXPECT_EQ(only("/operations/end_seconds"), 1.5);
  EXPECT_EQ(numbers(file, "/messages/sends"), (std::vector<double>{1, 0}));
  EXPECT_EQ(numbers(file, "/messages/peer"), (std::vector<double>{7, 3})) << "world ranks";
  EXPECT_EQ(numbers(file, "/messages/bytes"), (std::vector<double>{64, 32}));
  EXPECT_EQ(texts(file, "/lives/label"), std::vector<std::string>{"blocks.1.mlp.pre"});
  EXPECT_EQ(only("/lives/layer"), 1);
  EXPECT_EQ(only("/lives/bytes"), 1 << 20);
  EXPECT_EQ(only("/lives/end_seconds"), 2.5);
}

TEST(TimingWriter, AKilledRunLosesAtMostTheRowsSinceTheLastFlush) {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    io::TimingWriter writer(folder.path(), some_info(), 10);
    for (int step = 1; step <= 27; ++step) writer.append(row_of(step));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  ASSERT_TRUE(file);
  EXPECT_EQ(numbers(file, "/steps/step").size(), 20U);
  EXPECT_EQ(numbers(file, "/steps/memory_now_bytes").back(), 20);
}

std::vector<double> steps_in(const TempFolder& folder) {
  const Handle file = io::hdf5::open_file(folder.path() + "/rank_00003.h5");
  EXPECT_TRUE(file);
  return numbers(file, "/steps/step_seconds");
}

void set_limit(rlim_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(TimingWriter, AFullDiskIsReportedOnceAndRowsComeWhenThereIsRoom) {
  const TempFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files acts like a disk that fills up
  testing::internal::CaptureStderr();
  {
    io::TimingWriter writer(folder.path(), some_info(), 10);
    for (int step = 1; step <= 20; ++step) writer.append(row_of(step));
    const auto size = std::filesystem::file_size(folder.path() + "/rank_00003.h5");
    set_limit(size + 3000);
    for (int step = 21; step <= 1500; ++step) writer.append(row_of(step));
    const std::vector<double> readable = steps_in(folder);  // other programs still read it
    EXPECT_GE(readable.size(), 20U);
    EXPECT_LT(readable.size(), 1000U);
    for (std::size_t i = 0; i < readable.size(); ++i) {
      ASSERT_EQ(readable[i], static_cast<double>(i + 1) + 0.5);
    }
    set_limit(RLIM_INFINITY);
    for (int step = 1501; step <= 1510; ++step) writer.append(row_of(step));
    EXPECT_EQ(steps_in(folder).size(), 1510U);
  }
  const std::string reported = testing::internal::GetCapturedStderr();
  const std::size_t first = reported.find("File too large");
  EXPECT_NE(first, std::string::npos) << reported;
  EXPECT_EQ(reported.find("File too large", first + 1), std::string::npos) << reported;
  EXPECT_NE(reported.find("written again"), std::string::npos) << reported;
  EXPECT_EQ(reported.find("lost"), std::string::npos) << reported;
  const std::vector<double> all = steps_in(folder);
  ASSERT_EQ(all.size(), 1510U);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<double>(i + 1) + 0.5);
}

TEST(TimingWriter, AProgramThatEndsOnAFullDiskCountsTheRowsAndEndsWell) {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    testing::internal::CaptureStderr();
    {
      io::TimingWriter writer(folder.path(), some_info(), 10);
      writer.append(row_of(1));
      writer.flush();
      set_limit(std::filesystem::file_size(folder.path() + "/rank_00003.h5"));
      for (int step = 2; step <= 5000; ++step) writer.append(row_of(step));
    }
    const std::string reported = testing::internal::GetCapturedStderr();
    // with HDF5's own handler, which must not crash
    std::exit(reported.find("row(s) are lost") != std::string::npos ? 42 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(TimingWriter, AFileThatCannotBeWrittenAtTheStartIsAnError) {
  const TempFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);
  set_limit(100);
  EXPECT_THROW({ const io::TimingWriter writer(folder.path(), some_info()); }, Error);
  set_limit(RLIM_INFINITY);
}

TEST(TimingWriter, AFolderThatCannotBeMadeIsNamed) {
  try {
    const io::TimingWriter writer("/dev/null/start_0001", some_info());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_EQ(std::string(error.what()), "/dev/null/start_0001: Not a directory");
  }
}

TEST(NextStartFolder, CountsUpAndNeverGivesOneTwice) {
  const TempFolder folder;
  EXPECT_EQ(io::next_start_folder(folder.path()), folder.path() + "/timing/start_0001");
  EXPECT_EQ(io::next_start_folder(folder.path()), folder.path() + "/timing/start_0002");
  std::filesystem::create_directory(folder.path() + "/timing/start_0007");
  EXPECT_EQ(io::next_start_folder(folder.path()), folder.path() + "/timing/start_0008");
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() + "/timing/start_0008"));
}

}  // namespace
}  // namespace hyperslab::test
