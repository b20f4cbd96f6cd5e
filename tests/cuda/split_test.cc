#include "cuda/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/cuda/split_case.h"

namespace eplb::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::SplitCase;
using testing::SplitResults;

TEST(SplitOnHostTest, EqualsBatchSplitterAndTheQuotasOfEverySource) {
  Random random(501);
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    const SplitCase c(random, eplb::RandomTopology(random));
    SplitResults results(c);
    std::vector<int64_t> taken(results.quotas.size());
    for (int32_t source = 0; source < c.num_sources(); ++source) {
      SplitArgs args = c.ArgsFor(results);
      args.source = source;
      ASSERT_TRUE(SplitOnHost(args).ok());
      EXPECT_EQ(results, c.Expected(source));
      for (size_t slot = 0; slot < taken.size(); ++slot) taken[slot] += results.own[slot];
    }
    EXPECT_EQ(taken, results.quotas) << "the sources together meet the quotas";
  }
}

TEST(SplitOnHostTest, OneLayerOfManyIsSplitAlone) {
  Random random(502);
  const SplitCase c(
      random, *Topology::Make({.num_layers = 3, .num_experts = 8, .num_slots = 12, .num_gpus = 4}));
  SplitResults all(c);
  ASSERT_TRUE(SplitOnHost(c.ArgsFor(all)).ok());
  // The counts of the second layer alone: those of its sources are no longer a layer apart.
  std::vector<int64_t> counts;
  for (int32_t source = 0; source < c.num_sources(); ++source) {
    const auto* const row = c.counts().data() + static_cast<ptrdiff_t>(3 * source + 1) * 8;
    counts.insert(counts.end(), row, row + 8);
  }
  SplitResults one(c);
  SplitArgs args = c.ArgsFor(one);
  args.first_layer = 1;
  args.num_layers = 1;
  args.counts = counts.data();
  ASSERT_TRUE(SplitOnHost(args).ok());
  EXPECT_EQ(std::vector<int64_t>(one.quotas.begin(), one.quotas.begin() + 12),
            std::vector<int64_t>(all.quotas.begin() + 12, all.quotas.begin() + 24));
  EXPECT_EQ(std::vector<int64_t>(one.own.begin(), one.own.begin() + 12),
            std::vector<int64_t>(all.own.begin() + 12, all.own.begin() + 24));
}

TEST(SplitOnHostTest, CountsThatCannotBeSplitRefuseTheirLayerAlone) {
  Random random(503);
  SplitCase c(random,
              *Topology::Make({.num_layers = 2, .num_experts = 8, .num_slots = 12, .num_gpus = 4}));
  const auto refused = [&](int32_t expert, int64_t count) {
    SplitResults good(c);
    EXPECT_TRUE(SplitOnHost(c.ArgsFor(good)).ok());
    SplitCase bad = c;
    bad.counts()[static_cast<size_t>(expert)] = count;  // count of source 0 and layer 0
    SplitResults results(bad);
    EXPECT_TRUE(SplitOnHost(bad.ArgsFor(results)).ok());
    EXPECT_THAT(std::vector<int64_t>(results.quotas.begin(), results.quotas.begin() + 12),
                Each(-1));
    EXPECT_THAT(std::vector<int64_t>(results.own.begin(), results.own.begin() + 12), Each(-1));
    EXPECT_EQ(std::vector<int64_t>(results.quotas.begin() + 12, results.quotas.end()),
              std::vector<int64_t>(good.quotas.begin() + 12, good.quotas.end()));
    EXPECT_EQ(results.refused[1], kNotRefused);
    return results.refused[0];
  };
  EXPECT_EQ(refused(3, -1), 3);
  EXPECT_EQ(refused(5, kMaxSplitTokens + 1), 5);
  EXPECT_EQ(refused(5, INT64_MAX), 5);
  std::fill(c.counts().begin(), c.counts().end(), 1);
  EXPECT_EQ(refused(2, kMaxSplitTokens - 8), 8) << "the sum is too large, no expert's count";
}

TEST(SplitTablesTest, SharedMemoryHoldsALayerOfUsualShapes) {
  Random random(505);
  const auto bytes = [&](int32_t num_experts, int32_t num_slots, int32_t num_gpus) {
    const SplitCase c(random, *Topology::Make({.num_layers = 1,
                                               .num_experts = num_experts,
                                               .num_slots = num_slots,
                                               .num_gpus = num_gpus}));
    SplitResults results(c);
    return SplitScratchBytes(c.ArgsFor(results).tables, 1);
  };
  EXPECT_EQ(bytes(256, 288, 32), 0);
  EXPECT_EQ(bytes(256, 384, 64), 0);
  EXPECT_GT(bytes(512, 2048, 128), 48 * 1024);
}

TEST(CheckSplitArgsTest, RefusalNamesTheNumber) {
  Random random(506);
  const SplitCase c(
      random, *Topology::Make({.num_layers = 2, .num_experts = 8, .num_slots = 12, .num_gpus = 4}));
  SplitResults results(c);
  const SplitArgs good = c.ArgsFor(results);
  EXPECT_TRUE(CheckSplitArgs(good).ok());
  SplitArgs bad = good;
  bad.first_layer = 1;
  EXPECT_THAT(CheckSplitArgs(bad).message(),
              HasSubstr("2 layers from layer 1 on: they are not all among 2 layers"));
  bad = good;
  bad.source = c.num_sources();
  EXPECT_THAT(CheckSplitArgs(bad).message(), HasSubstr("source 4 of 4 sources"));
  bad = good;
  bad.refused = nullptr;
  EXPECT_THAT(CheckSplitArgs(bad).message(), HasSubstr("one of them is null"));
  bad.num_layers = 0;
  EXPECT_TRUE(CheckSplitArgs(bad).ok()) << "no work needs no pointer";
  bad = good;
  bad.tables.num_gpus = 129;
  EXPECT_EQ(CheckSplitArgs(bad).message(),
            "split over 129 GPUs by the kernel, expected 1..128; BatchSplitter splits over more on "
            "the CPU");
}

}  // namespace
}  // namespace eplb::cuda
