// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/model_queue.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace hyperslab::test {
namespace {

using serve::ModelQueue;

/// Notes what becomes of work.
struct Journal {
  std::string text;
  [[nodiscard]] ModelQueue::Work work(char name) {
    return {[this, name] { text += name; }, [this, name] { text += std::string("-") + name; }};
  }
};

TEST(ModelQueue, RunsInOrderAndTakesNoMoreThanItHolds) {
  ModelQueue queue(2);
  Journal journal;
  EXPECT_EQ(queue.push(journal.work('a')), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push(journal.work('b')), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push(journal.work('c')), ModelQueue::Pushed::full);
  std::thread model([&] { queue.run(); });
  while (queue.push({[&] { queue.close(); }, [] {}}) == ModelQueue::Pushed::full) {
    std::this_thread::yield();
  }
  model.join();

  EXPECT_EQ(journal.text, "ab");
}

TEST(ModelQueue, RefusesWhatWaitsOnceItIsClosed) {
  ModelQueue queue(3);
  Journal journal;
  EXPECT_EQ(queue.push({[&] {
                          journal.text += "a";
                          queue.close();
                        },
                        [] {}}),
            ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push(journal.work('b')), ModelQueue::Pushed::taken);
  queue.run();

  EXPECT_EQ(journal.text, "a-b");
  EXPECT_EQ(queue.push(journal.work('c')), ModelQueue::Pushed::closed);
}

}  // namespace
}  // namespace hyperslab::test
