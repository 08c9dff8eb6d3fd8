// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/documents.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "hyperslab/train/setup.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"

namespace hyperslab::plan {
namespace {

constexpr std::int32_t kEnd = 66;
constexpr Dim kT = 12;

/// A raw file of documents for each test, the last token of each of which is kEnd.
class WithDocuments : public testing::Test {
 protected:
  /// Its path, with documents of `length` tokens.
  [[nodiscard]] std::string written_tokens(int length) const {
    const std::string path = folder_.path() + "/tokens.bin";
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 601; ++i) {
      const std::uint16_t id = i % length == length - 1 ? kEnd : 1;
      file.write(reinterpret_cast<const char*>(&id), sizeof(id));
    }
    return path;
  }

 private:
  test::TempFolder folder_;
};
class CountDocumentKeys : public WithDocuments {};
class LeavingOutDocuments : public WithDocuments {};

train::Config masked(const std::string& file, std::vector<std::string> more = {}) {
  more.insert(more.end(),
              {"data.documents=masked", "data.end_token=66", "data.train=[" + file + "]",
               "model.position=rope", "model.attention=fused"});
  return test::small_config(more, 1);
}

/// Keys that the tokens of a document of L tokens see.
double seen(double L, double window) {
  double keys = 0;
  for (double t = 1; t <= L; ++t) keys += std::min(t, window);
  return keys;
}

TEST_F(CountDocumentKeys, AreThoseOfTheTrainingData) {
  const std::string file = written_tokens(4);

  const DocumentKeys plain = count_document_keys(masked(file));
  const DocumentKeys windowed = count_document_keys(masked(file, {"model.window=3"}));

  EXPECT_EQ(plain.unknown, "");
  EXPECT_EQ(plain.samples, 50);  // all there are
  EXPECT_DOUBLE_EQ(plain.shares.all, 3 * seen(4, kT) / seen(kT, kT));
  EXPECT_DOUBLE_EQ(windowed.shares.windowed, 3 * seen(4, 3) / seen(kT, 3));
  EXPECT_EQ(count_document_keys(test::small_config({}, 1)).shares.all, 1);
}

/// Two documents and two tokens of padding, but for a sample that has the last one, of one token.
TEST_F(CountDocumentKeys, OfPackedSamplesAreThoseOfTheirPieces) {
  const std::string file = written_tokens(5);

  const DocumentKeys packed =
      count_document_keys(masked(file, {"data.packing=best_fit", "data.predict_starts=false"}));

  EXPECT_EQ(packed.unknown, "");
  EXPECT_EQ(packed.samples, 60);
  const double two = 2 * seen(5, kT);
  EXPECT_DOUBLE_EQ(packed.shares.all, (59 * (two + seen(2, kT)) + two + 2) / (60 * seen(kT, kT)));
}

TEST_F(CountDocumentKeys, AreNotKnownWithoutTheData) {
  const DocumentKeys keys = count_document_keys(masked("/nowhere/tokens.bin"));

  EXPECT_EQ(keys.samples, 0);
  EXPECT_EQ(keys.shares.all, 1);
  EXPECT_THAT(keys.unknown, testing::HasSubstr("/nowhere/tokens.bin"));
}

double flops_of(const OperationList& operations) {
  double flops = 0;
  for (const Operation& op : operations) flops += op.size.flops;
  return flops;
}

/// By hand: two GEMMs forward and five backward over the pairs that are hidden.
TEST_F(LeavingOutDocuments, TakesTheirShareOffEachLayersAttention) {
  const train::Config config = masked(
      written_tokens(4),
      {"model.window=3", "model.window_full_every=3", "model.layers=3", "memory.recompute=full"});
  const KeyShares shares = {0.25, 0.75};
  Plan plan = make_plan(config, {}, 0, 2);
  const double before = flops_of(plan.operations[0]);
  const double p = 3.0 / kT;
  const double pairs =
      static_cast<double>(config.train.global_batch * config.model.width * kT * kT);
  // Forward passes are done again.
  const double hidden =
      (2 + 2 + 5) * 2 * pairs * (2 * (p - p * p / 2) * (1 - 0.75) + 0.5 * (1 - 0.25));

  leave_out_documents(plan, config, shares);

  EXPECT_NEAR(plan.hidden_flops, hidden, 1e-9 * hidden);
  EXPECT_NEAR(before - flops_of(plan.operations[0]), hidden, 1e-9 * hidden);
  EXPECT_EQ(flops_of(plan.operations[0]), flops_of(plan.operations[1]));
  EXPECT_DOUBLE_EQ(plan.flops(), plan.ledger.total().flops - plan.hidden_flops);
}

TEST_F(LeavingOutDocuments, LeavesReferenceAttentionWhichComputesAllPairs) {
  train::Config config = masked(written_tokens(4));
  config.model.attention = model::AttentionPath::reference;
  Plan plan = make_plan(config, {}, 0, 1);
  const double before = flops_of(plan.operations[0]);

  leave_out_documents(plan, config, {0.25, 0.25});

  EXPECT_EQ(plan.hidden_flops, 0);
  EXPECT_EQ(flops_of(plan.operations[0]), before);
}

}  // namespace
}  // namespace hyperslab::plan
