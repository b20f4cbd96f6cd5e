#include "deploy/examples/replay_trainer/step_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "tests/client/rows/control/world.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

RecordedWindow Window(int64_t first, int64_t last, uint32_t seed) {
  std::mt19937 random(seed);
  LoadMatrix counts(2, 5);
  for (Eigen::Index i = 0; i < counts.size(); ++i)
    counts.data()[i] = static_cast<int64_t>(random() % 100);
  return {first, last, counts};
}

StepLoads TwoWindows() { return *StepLoads::Make({Window(10, 12, 1), Window(13, 19, 2)}); }

TEST(StepLoadsTest, StepsOfAWindowSumToTheWindow) {
  const StepLoads loads = TwoWindows();
  EXPECT_EQ(loads.num_steps(), 10);
  LoadMatrix sum = LoadMatrix::Zero(2, 5);
  for (int64_t step = 0; step < 3; ++step) sum += loads.Total(step);
  EXPECT_TRUE((sum == Window(10, 12, 1).counts).all());
  sum.setZero();
  for (int64_t step = 3; step < 10; ++step) sum += loads.Total(step);
  EXPECT_TRUE((sum == Window(13, 19, 2).counts).all());
}

TEST(StepLoadsTest, RanksOfAStepSumToTheStep) {
  const StepLoads loads = TwoWindows();
  for (const int32_t world_size : {1, 3, 8}) {
    LoadMatrix sum = LoadMatrix::Zero(2, 5);
    for (int32_t rank = 0; rank < world_size; ++rank) {
      sum += StepLoads::OfRank(loads.Total(4), rank, world_size);
    }
    EXPECT_TRUE((sum == loads.Total(4)).all()) << "world size " << world_size;
  }
}

TEST(StepLoadsTest, ALongRunStartsTheTraceAgain) {
  const StepLoads loads = TwoWindows();
  EXPECT_TRUE((loads.Total(10) == loads.Total(0)).all());
  EXPECT_TRUE((loads.Total(29) == loads.Total(9)).all());
}

TEST(StepLoadsTest, GapsOverlapsAndShapesAreRefused) {
  EXPECT_THAT(std::string(StepLoads::Make({}).status().message()), HasSubstr("no window"));
  EXPECT_THAT(std::string(StepLoads::Make({Window(0, 4, 1), Window(6, 9, 2)}).status().message()),
              HasSubstr("window 1 covers steps 6..9, expected it to begin at 5"));
  EXPECT_FALSE(StepLoads::Make({Window(0, 4, 1), Window(4, 9, 2)}).ok());
  EXPECT_FALSE(StepLoads::Make({Window(3, 2, 1)}).ok());
  RecordedWindow narrow{5, 9, LoadMatrix::Zero(2, 4)};
  EXPECT_THAT(std::string(StepLoads::Make({Window(0, 4, 1), narrow}).status().message()),
              HasSubstr("window 1 is 2 layers x 4 experts, window 0 is 2 x 5"));
}

TEST(MeasuredLoadsTest, ASlowRankLengthensTheStepAndChangesNoBalancedness) {
  std::vector<int64_t> gathered;
  for (const double tokens : {10.0, 20.0, 15.0, 15.0}) {  // 2 ranks x 2 layers
    gathered.push_back(std::bit_cast<int64_t>(tokens));
  }
  const MeasuredLoads equal = MeasureLoads(gathered, 2, 2);
  EXPECT_DOUBLE_EQ(equal.slowdown, (15 + 20) / (12.5 + 17.5));
  const MeasuredLoads slowed = MeasureLoads(gathered, 2, 2, {.rank = 0, .factor = 2});
  EXPECT_DOUBLE_EQ(slowed.slowdown, (20 + 40) / (12.5 + 17.5));
  EXPECT_DOUBLE_EQ(*slowed.balancedness, *equal.balancedness);
}

TEST(MeasuredLoadsTest, AStepWithoutTokensHasNoBalancedness) {
  const std::vector<int64_t> gathered(4, std::bit_cast<int64_t>(0.0));  // 2 ranks x 2 layers
  EXPECT_EQ(MeasureLoads(gathered, 2, 2).balancedness, std::nullopt);
}

// One layer of 3 experts in 4 slots of 2 GPUs, expert 0 on both; this rank is GPU 1.
struct SmallView {
  std::vector<int32_t> slots = {1, 0, 0, 2};
  std::vector<int32_t> replicas = {2, 1, 1};
  std::vector<int32_t> slots_of = {2, 1, 0, -1, 3, -1};  // the primary of expert 0 is slot 2
  PlacementView view{.version = 1,
                     .digest = {},
                     .num_layers = 1,
                     .num_experts = 3,
                     .num_slots = 4,
                     .first_local_slot = 2,
                     .num_local_slots = 2,
                     .physical_to_logical_map = slots,
                     .logical_replica_count = replicas,
                     .logical_to_physical_map = slots_of,
                     .max_replicas = 2};
};

TEST(OwnGpuLoadsTest, ReplicasTakeEqualShares) {
  SmallView small;
  LoadMatrix total(1, 3);
  total << 9, 6, 1;
  EXPECT_EQ(OwnGpuLoads(total, small.view), std::vector<double>{5.5});
}

TEST(JobChannelTest, EveryRankGetsTheValuesOfAllRanksInRankOrder) {
  // 5 ranks x 30 values need three collectives of at most 64 values.
  constexpr int32_t kWorldSize = 5;
  ThreadAllGather all_gather(kWorldSize);
  std::vector<std::vector<int64_t>> gathered(kWorldSize);
  RunRanks(kWorldSize, [&](int32_t rank) {
    const auto channel = MakeTcpControlChannel(
        {.rank = RankId{rank}, .world_size = kWorldSize, .secret = "s"}, all_gather.ForRank(rank));
    ASSERT_TRUE(channel.ok()) << channel.status();
    std::vector<int64_t> mine;
    for (int64_t i = 0; i < 30; ++i) mine.push_back(rank * 1000 + i);
    const auto all = GatherNumbers(**channel, mine, absl::Seconds(10));
    if (all.ok()) gathered[static_cast<size_t>(rank)] = *all;
  });
  for (const std::vector<int64_t>& all : gathered) {
    ASSERT_EQ(all.size(), 150u);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i], static_cast<int64_t>(i / 30 * 1000 + i % 30));
    }
  }
}

}  // namespace

}  // namespace eplb
