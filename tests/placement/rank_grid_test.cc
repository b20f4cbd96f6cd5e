#include "placement/rank_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace eplb {
namespace {

using ::testing::ElementsAre;

std::string Refusal(const RankGridOptions& options) {
  return std::string(RankGrid::Make(options).status().message());
}

TEST(RankGridTest, LanesAreBlocksOfConsecutiveRanks) {
  const RankGrid grid = RankGrid::Make({.world_size = 6, .num_gpus = 3}).value();
  EXPECT_EQ(grid.num_lanes(), 2);
  EXPECT_EQ(grid.num_token_lanes(), 2);
  EXPECT_EQ(grid.LaneOf(RankId{4}), 1);
  EXPECT_EQ(grid.GpuOf(RankId{4}), GpuId{1});
  EXPECT_THAT(grid.RanksOf(1), ElementsAre(RankId{3}, RankId{4}, RankId{5}));
  EXPECT_EQ(grid.PipelineRankOf(RankId{5}), 0);
}

TEST(RankGridTest, PipelineRanksAreSlowest) {
  const RankGrid grid =
      RankGrid::Make({.world_size = 8, .num_gpus = 2, .num_pipeline_ranks = 2}).value();
  EXPECT_EQ(grid.ranks_per_pipeline_rank(), 4);
  EXPECT_EQ(grid.num_lanes(), 4);
  EXPECT_EQ(grid.num_token_lanes(), 2);
  EXPECT_EQ(grid.PipelineRankOf(RankId{3}), 0);
  EXPECT_EQ(grid.PipelineRankOf(RankId{4}), 1);
  EXPECT_THAT(grid.RanksOf(2), ElementsAre(RankId{4}, RankId{5}));
}

// Megatron's groups of 8 ranks with expert_tensor_parallel 2 and expert_parallel 2: 0, 2 and 1, 3
// and so on exchange experts; 0, 1 hold halves of the same ones.
TEST(RankGridTest, ExpertTensorParallelRanksAreFastest) {
  const RankGrid grid =
      RankGrid::Make({.world_size = 8, .num_gpus = 2, .expert_tensor_parallel = 2}).value();
  EXPECT_THAT(grid.RanksOf(0), ElementsAre(RankId{0}, RankId{2}));
  EXPECT_THAT(grid.RanksOf(1), ElementsAre(RankId{1}, RankId{3}));
  EXPECT_THAT(grid.RanksOf(3), ElementsAre(RankId{5}, RankId{7}));
  EXPECT_EQ(grid.num_token_lanes(), 2);
  EXPECT_TRUE(grid.CountsTokens(RankId{6}));
  EXPECT_FALSE(grid.CountsTokens(RankId{7}));
}

TEST(RankGridTest, EveryRankHasAPlaceOfItsOwn) {
  const RankGrid grid =
      RankGrid::Make(
          {.world_size = 72, .num_gpus = 3, .num_pipeline_ranks = 3, .expert_tensor_parallel = 4})
          .value();
  for (int32_t rank = 0; rank < 72; ++rank) {
    const int32_t lane = grid.LaneOf(RankId{rank});
    EXPECT_GE(lane, 0);
    EXPECT_LT(lane, grid.num_lanes());
    EXPECT_EQ(grid.RankOf(lane, grid.GpuOf(RankId{rank})), RankId{rank});
    // A lane lies in one pipeline rank.
    EXPECT_EQ(grid.PipelineRankOf(grid.RankOf(lane, GpuId{0})), grid.PipelineRankOf(RankId{rank}));
  }
}

TEST(RankGridTest, WhatDoesNotDivideIsNamed) {
  EXPECT_EQ(Refusal({.world_size = 3, .num_gpus = 2}),
            "world_size: 3, expected a positive multiple of num_gpus 2");
  EXPECT_EQ(Refusal({.world_size = 0}),
            "world_size: 0, expected a positive multiple of num_gpus 1");
  EXPECT_EQ(Refusal({.world_size = 6, .num_gpus = 2, .num_pipeline_ranks = 2}),
            "world_size: 6, expected a positive multiple of num_pipeline_ranks 2 * num_gpus 2");
  EXPECT_EQ(
      Refusal(
          {.world_size = 6, .num_gpus = 2, .num_pipeline_ranks = 3, .expert_tensor_parallel = 2}),
      "world_size: 6, expected a positive multiple of num_pipeline_ranks 3 * "
      "expert_tensor_parallel 2 * num_gpus 2");
  EXPECT_EQ(Refusal({.num_pipeline_ranks = 0}), "num_pipeline_ranks: 0, expected >= 1");
  EXPECT_EQ(Refusal({.expert_tensor_parallel = -1}), "expert_tensor_parallel: -1, expected >= 1");
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  EXPECT_NE(Refusal({.world_size = 4,
                     .num_gpus = kMost,
                     .num_pipeline_ranks = kMost,
                     .expert_tensor_parallel = kMost}),
            "");
}

}  // namespace
}  // namespace eplb
