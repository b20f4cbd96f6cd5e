#include "cuda/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

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
  EXPECT_EQ(refused(5, kMaxNarrowTokens + 1), 5);
  EXPECT_EQ(refused(5, INT64_MAX), 5);
  std::fill(c.counts().begin(), c.counts().end(), 1);
  EXPECT_EQ(refused(2, kMaxNarrowTokens - 8), 8) << "the sum is too large, no expert's count";
}

TEST(SplitOnHostTest, TablesThatRefuseSplitNoBatch) {
  Random random(507);
  const SplitCase c(
      random, *Topology::Make({.num_layers = 2, .num_experts = 8, .num_slots = 12, .num_gpus = 4}));
  SplitResults results(c);
  SplitArgs args = c.ArgsFor(results);
  std::vector<TableUnit> tables(c.tables().size());
  PackRefusal(args.shape, std::as_writable_bytes(std::span(tables)));
  args.tables = reinterpret_cast<const std::byte*>(tables.data());
  ASSERT_TRUE(SplitOnHost(args).ok());
  EXPECT_THAT(results.quotas, Each(-1));
  EXPECT_THAT(results.own, Each(-1));
  EXPECT_THAT(results.refused, Each(8));
}

// The largest batch of the largest EP group: its numbers of 32 bits must not overflow, whatever the
// speeds and margins are.
TEST(SplitOnHostTest, TheLargestSumHasTheBitsOfBatchSplitterToo) {
  Random random(504);
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    SplitCase c(
        random,
        eplb::RandomPlacement(
            random, *Topology::Make(
                        {.num_layers = 4, .num_experts = 8, .num_slots = 256, .num_gpus = 128})));
    std::fill(c.counts().begin(), c.counts().end(), 0);
    for (size_t layer = 0; layer < 4; ++layer) {
      const int64_t others = layer == 0 ? 0 : kMaxNarrowTokens >> (4 * layer);
      for (size_t expert = 0; expert < 8; ++expert) c.counts()[8 * layer + expert] = others;
      c.counts()[8 * layer + layer] += kMaxNarrowTokens - 8 * others;
    }
    SplitResults results(c);
    ASSERT_TRUE(SplitOnHost(c.ArgsFor(results)).ok());
    EXPECT_EQ(results, c.Expected(c.num_sources() - 1));
  }
}

// The bounds must hold a layer in which each expert is on all GPUs, and one of fixed experts.
TEST(SplitTablesTest, TheBoundsOfAShapeHoldItsFullestPlacements) {
  Random random(505);
  for (int32_t num_gpus = 1; num_gpus <= 128; num_gpus *= 2) {
    const Topology topology = *Topology::Make(
        {.num_layers = 1, .num_experts = 4, .num_slots = 4 * num_gpus, .num_gpus = num_gpus});
    std::vector<int32_t> slots;
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) slots.push_back(slot % 4);
    const SplitGraph graph = *SplitGraph::Make(*Placement::FromSlots(
        topology, Eigen::Map<const IndexMatrix>(slots.data(), 1, topology.num_slots())));
    const SplitTables tables = graph.Tables();
    EXPECT_LE(tables.num_tables, MaxTableNumbers(tables.shape));
    EXPECT_LE(tables.layers[0].num_parts, LargestSizes(tables.shape).num_parts);
    EXPECT_LE(tables.layers[0].num_replicated, LargestSizes(tables.shape).num_replicated);
  }
}

TEST(SplitTablesTest, SharedMemoryHoldsALayerOfUsualShapes) {
  const auto bytes = [](const SplitShape& shape) { return SplitSharedBytes({.shape = shape}); };
  EXPECT_LE(bytes({58, 256, 288, 32, 9}), 12 * 1024);
  EXPECT_LE(bytes({58, 256, 384, 64, 6}), 24 * 1024);
  EXPECT_LE(bytes({58, 256, 512, 128, 4}), 46 * 1024);
  EXPECT_LE(bytes({58, 512, 1024, 64, 16}), kMaxSplitSharedBytes);
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
  EXPECT_THAT(CheckSplitArgs(bad).message(),
              HasSubstr(absl::StrCat("source ", bad.source, " of ", bad.source, " sources")));
  bad = good;
  bad.num_sources = 3;
  bad.source = 0;
  EXPECT_THAT(CheckSplitArgs(bad).message(), HasSubstr("one of 3 sources"));
  bad = good;
  bad.gpus_of_node = 3;
  EXPECT_THAT(CheckSplitArgs(bad).message(), HasSubstr("on nodes of 3 GPUs"));
  bad = good;
  bad.refused = nullptr;
  EXPECT_THAT(CheckSplitArgs(bad).message(), HasSubstr("one of them is null"));
  bad.num_layers = 0;
  EXPECT_TRUE(CheckSplitArgs(bad).ok()) << "no work needs no pointer";
  bad = good;
  bad.shape.num_gpus = 129;
  EXPECT_EQ(CheckSplitArgs(bad).message(),
            "split over 129 GPUs by the kernel, expected 1..128; BatchSplitter splits over more on "
            "the CPU");
  bad.shape = {.num_layers = 1,
               .num_experts = 512,
               .num_slots = 2048,
               .num_gpus = 128,
               .max_slots_of_gpu = 16};
  EXPECT_THAT(CheckSplitArgs(bad).message(),
              HasSubstr("512 experts in 2048 slots by the kernel needs "));
}

}  // namespace
}  // namespace eplb::cuda
