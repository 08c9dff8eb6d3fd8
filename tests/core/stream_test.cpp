// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/stream.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "hyperslab/core/transfer.hpp"

namespace hyperslab::test {
namespace {

/// Work that holds its stream up until open().
class Gate {
 public:
  void hold(Stream& stream) {
    stream.run([opened = opened_.get_future().share()] { opened.wait(); });
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

void let_others_run() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(Stream, CallerDoesItsWorkAtOnce) {
  Stream stream(Device::cpu);
  int done = 0;

  stream.run([&] { done = 1; });

  EXPECT_EQ(done, 1);
  EXPECT_TRUE(stream.record().is_complete());
  EXPECT_FALSE(stream.has_thread());
  EXPECT_EQ(stream.cuda(), nullptr);
}

TEST(Stream, ThreadDoesItsWorkInOrder) {
  constexpr int kItems = 1000;
  Stream stream(Device::cpu, HostWork::by_thread);
  std::vector<int> done;
  std::thread::id worker;

  for (int i = 0; i < kItems; ++i) stream.run([&done, i] { done.push_back(i); });
  stream.run([&worker] { worker = std::this_thread::get_id(); });
  stream.record().wait();

  std::vector<int> expected(kItems);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(done, expected);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(Stream, StartsNoThreadBeforeItsFirstWork) {
  const std::ptrdiff_t before = threads_of_this_process();
  Stream stream(Device::cpu, HostWork::by_thread);
  const bool complete = stream.record().is_complete();
  stream.wait(Event());
  const std::ptrdiff_t without_work = threads_of_this_process();
  stream.run([] {});

  EXPECT_TRUE(complete);
  EXPECT_EQ(without_work, before);
  EXPECT_EQ(threads_of_this_process(), before + 1);
}

TEST(Stream, OnMetaNothingIsDone) {
  Stream stream(Device::meta, HostWork::by_thread);

  stream.wait(stream.record());

  EXPECT_TRUE(stream.record().is_complete());
  EXPECT_THROW(stream.run([] {}), Error);
}

TEST(Stream, ThreadDoesWhatIsLeftBeforeTheEnd) {
  std::atomic<int> done = 0;
  {
    Stream stream(Device::cpu, HostWork::by_thread);
    stream.run(let_others_run);
    for (int i = 0; i < 5; ++i) stream.run([&] { ++done; });
  }

  EXPECT_EQ(done, 5);
}

TEST(Event, IsCompleteOnceTheWorkBeforeItIsDone) {
  Stream stream(Device::cpu, HostWork::by_thread);
  Gate gate;
  int done = 0;
  gate.hold(stream);
  stream.run([&] { done = 1; });

  const Event event = stream.record();
  let_others_run();
  const bool early = event.is_complete();
  gate.open();
  event.wait();

  EXPECT_FALSE(early);
  EXPECT_TRUE(event.is_complete());
  EXPECT_EQ(done, 1);
}

TEST(Event, OrdersTwoStreams) {
  Stream first(Device::cpu, HostWork::by_thread);
  Stream second(Device::cpu, HostWork::by_thread);
  Gate gate;
  int value = 1;
  gate.hold(first);
  first.run([&] { value += 2; });

  second.wait(first.record());
  second.run([&] { value *= 10; });
  const Event event = second.record();
  let_others_run();
  const bool early = event.is_complete();
  gate.open();
  event.wait();

  EXPECT_FALSE(early);
  EXPECT_EQ(value, 30);
}

TEST(Event, IsWaitedForByWorkOfTheCaller) {
  Stream compute(Device::cpu);
  Stream copies(Device::cpu, HostWork::by_thread);
  std::atomic<int> done = 0;
  copies.run(let_others_run);
  copies.run([&] { done = 1; });

  compute.wait(copies.record());

  EXPECT_EQ(done, 1);
}

TEST(Event, OutlivesItsStream) {
  auto stream = std::make_unique<Stream>(Device::cpu, HostWork::by_thread);
  stream->run(let_others_run);
  const Event event = stream->record();

  stream.reset();

  EXPECT_TRUE(event.is_complete());
  event.wait();
}

TEST(Event, ThrowsWhatTheWorkBeforeItThrew) {
  Stream first(Device::cpu, HostWork::by_thread);
  Stream second(Device::cpu, HostWork::by_thread);
  bool ran = false;
  const Event before = first.record();

  first.run([] { throw std::runtime_error("on purpose"); });
  first.run([&] { ran = true; });
  const Event failed = first.record();
  second.wait(failed);
  const Event after = second.record();

  EXPECT_NO_THROW(before.wait());
  EXPECT_THROW(failed.wait(), std::runtime_error);
  EXPECT_THROW(failed.wait(), std::runtime_error) << "every waiter learns it";
  EXPECT_THROW(after.wait(), std::runtime_error) << "and so do streams that waited";
  EXPECT_TRUE(failed.is_complete());
  EXPECT_FALSE(ran);
}

TEST(CopyAsync, RunsBesideTheCaller) {
  constexpr Dim kSize = 16 << 20;
  Context ctx(Device::cpu);
  Tensor from(Device::cpu, DType::f32, {kSize});
  Tensor to(Device::cpu, DType::f32, {kSize});
  float* const source = from.view().data<float>();
  std::iota(source, source + kSize, 0.0F);
  Gate gate;
  gate.hold(ctx.copy_stream());

  const Event event = copy_async(ctx, from.view(), to.view());
  const bool blocked = event.is_complete();  // the caller got here although nothing was copied
  gate.open();
  double sum = 0;
  std::int64_t rounds = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!event.is_complete() && std::chrono::steady_clock::now() < deadline) {
    for (int i = 1; i < 1000; ++i) sum += 1.0 / i;
    ++rounds;
  }

  EXPECT_FALSE(blocked);
  EXPECT_TRUE(event.is_complete()) << "the copy needs no wait to proceed";
  EXPECT_GT(rounds, 0);
  EXPECT_GT(sum, 0);
  EXPECT_TRUE(std::equal(source, source + kSize, to.view().data<float>()));
}

TEST(CopyAsync, CopiesInOrder) {
  Context ctx(Device::cpu);
  Tensor a(Device::cpu, DType::f32, {1});
  Tensor b(Device::cpu, DType::f32, {1});
  Tensor c(Device::cpu, DType::f32, {1});
  *a.view().data<float>() = 3;
  *b.view().data<float>() = 0;
  Gate gate;
  gate.hold(ctx.copy_stream());

  (void)copy_async(ctx, a.view(), b.view());
  const Event second = copy_async(ctx, b.view(), c.view());
  gate.open();
  second.wait();

  EXPECT_EQ(*c.view().data<float>(), 3);
}

TEST(CopyAsync, OnMetaNothingHappens) {
  Context ctx(Device::meta);
  Tensor from(Device::meta, DType::f32, {8});
  Tensor to(Device::meta, DType::f32, {8});

  const Event event = copy_async(ctx, from.view(), to.view());

  EXPECT_TRUE(event.is_complete());
  event.wait();
}

}  // namespace
}  // namespace hyperslab::test
