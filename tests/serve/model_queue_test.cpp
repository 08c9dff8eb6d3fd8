// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/model_queue.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <utility>

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

/// A model that is done with work as soon as it has begun.
ModelQueue::Model at_once() {
  return {[] { return true; }, [] { return false; }};
}

TEST(ModelQueue, RunsInOrderAndTakesNoMoreThanItHolds) {
  ModelQueue queue(2);
  Journal journal;
  EXPECT_EQ(queue.push(journal.work('a')), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push(journal.work('b')), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push(journal.work('c')), ModelQueue::Pushed::full);
  std::thread model([&] { queue.run(at_once()); });
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
  queue.run(at_once());

  EXPECT_EQ(journal.text, "a-b");
  EXPECT_EQ(queue.push(journal.work('c')), ModelQueue::Pushed::closed);
}

/// A model with two rows, on which work takes some steps.
class Rows {
 public:
  explicit Rows(Journal& journal) : journal_(journal) {}
  [[nodiscard]] ModelQueue::Work work(char name, int steps, bool is_alone = false) {
    return {[this, name, steps] {
              journal_.text += name;
              left_[name] = steps;
            },
            [this, name] { journal_.text += std::string("-") + name; }, is_alone};
  }
  [[nodiscard]] ModelQueue::Model model() {
    return {[this] { return left_.size() < 2; }, [this] { return step(); }};
  }

 private:
  bool step() {
    for (auto& [name, steps] : left_) {
      if (--steps == 0) journal_.text += static_cast<char>(name - 'a' + 'A');
    }
    std::erase_if(left_, [](const auto& each) { return each.second == 0; });
    return !left_.empty();
  }
  Journal& journal_;
  std::map<char, int> left_;
};

TEST(ModelQueue, WorkJoinsWhatIsUnderWayUnlessItNeedsTheModelAlone) {
  ModelQueue queue(9);
  Journal journal;
  Rows rows(journal);
  for (const auto& [name, steps] : {std::pair{'a', 1}, std::pair{'b', 5}, std::pair{'c', 2}}) {
    EXPECT_EQ(queue.push(rows.work(name, steps)), ModelQueue::Pushed::taken);
  }
  EXPECT_EQ(queue.push(rows.work('d', 1, true)), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push(rows.work('e', 1)), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push({[&] { queue.close(); }, [] {}}), ModelQueue::Pushed::taken);
  queue.run(rows.model());

  EXPECT_EQ(journal.text, "abAcCBdDeE");
}

TEST(ModelQueue, AnUpdateGoesBeforeWhatWaitsEvenInAFullQueue) {
  ModelQueue queue(2);
  Journal journal;
  Rows rows(journal);
  EXPECT_EQ(queue.push({[&] {
                          rows.work('a', 3).begin();
                          EXPECT_EQ(queue.push(rows.work('b', 1)), ModelQueue::Pushed::taken);
                          EXPECT_EQ(queue.push(rows.work('c', 1)), ModelQueue::Pushed::full);
                          ModelQueue::Work update = rows.work('u', 1, true);
                          update.is_first = true;
                          EXPECT_EQ(queue.push(std::move(update)), ModelQueue::Pushed::taken);
                        },
                        [] {}}),
            ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push({[&] { queue.close(); }, [] {}}), ModelQueue::Pushed::taken);
  queue.run(rows.model());

  EXPECT_EQ(journal.text, "aAuU-b");
}

TEST(ModelQueue, ACloseRefusesWhatWaitsAndFinishesWhatIsUnderWay) {
  ModelQueue queue(9);
  Journal journal;
  Rows rows(journal);
  EXPECT_EQ(queue.push(rows.work('a', 3)), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push({[&] { queue.close(); }, [] {}}), ModelQueue::Pushed::taken);
  EXPECT_EQ(queue.push(rows.work('b', 1)), ModelQueue::Pushed::taken);
  queue.run(rows.model());

  EXPECT_EQ(journal.text, "a-bA");
}

}  // namespace
}  // namespace hyperslab::test
