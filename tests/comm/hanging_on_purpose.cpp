// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <memory>

#include "comm/comm_test.hpp"
#include "hyperslab/comm/watchdog.hpp"

// The watchdog ends each of these; CTest checks the exit code and the line.
namespace hyperslab::test {
namespace {

class Hanging : public testing::Test {
 protected:
  Hanging() {
    data_->wait(ctx_, data_->all_reduce(ctx_, x_.view(), comm::ReduceOp::sum));
    world().activity().begin_step(7);
    world().activity().ended_step = 6;
    world().barrier();
    ::usleep(500'000);  // every rank has reported this by then
  }
  void reduce() { data_->wait(ctx_, data_->all_reduce(ctx_, x_.view(), comm::ReduceOp::sum)); }
  static void wait_for_ever() {
    while (true) ::pause();
  }

  std::unique_ptr<comm::Watchdog> watchdog_ = std::make_unique<comm::Watchdog>(
      world(), comm::WatchdogOptions{1, "data " + std::to_string(world().rank())});
  Context ctx_{Device::cpu};
  std::unique_ptr<comm::Communicator> data_ =
      world().communicator(Device::cpu, comm::GroupRole::data);
  Tensor x_ = filled_tensor(DType::f32, {8}, 0);
};

TEST_F(Hanging, Asleep) {
  if (world().rank() == 1) wait_for_ever();
  reduce();
}

TEST_F(Hanging, InAnotherCall) { world().rank() == 1 ? world().barrier() : reduce(); }

TEST_F(Hanging, Stopped) {
  if (world().rank() == 1) ::raise(SIGSTOP);
  reduce();
}

TEST_F(Hanging, FirstStopped) {
  if (world().rank() == 0) ::raise(SIGSTOP);
  reduce();
}

TEST_F(Hanging, Killed) {
  if (world().rank() == 1) ::raise(SIGKILL);
  reduce();
}

TEST_F(Hanging, FirstKilled) {
  if (world().rank() == 0) ::raise(SIGKILL);
  reduce();
}

TEST_F(Hanging, Everyone) { wait_for_ever(); }

/// No rank that lives sees more than itself.
TEST_F(Hanging, Unseen) {
  if (world().rank() < 2) watchdog_.reset();
  wait_for_ever();
}

}  // namespace
}  // namespace hyperslab::test
