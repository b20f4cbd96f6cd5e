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

TEST(RankGridTest, EpGroupsAreBlocksOfConsecutiveRanks) {
  const RankGrid grid = RankGrid::Make({.world_size = 6, .num_gpus = 3}).value();
  EXPECT_EQ(grid.num_ep_groups(), 2);
  EXPECT_EQ(grid.num_token_groups(), 2);
  EXPECT_EQ(grid.EpGroupOf(RankId{4}), 1);
  EXPECT_EQ(grid.GpuOf(RankId{4}), GpuId{1});
  EXPECT_THAT(grid.RanksOf(1), ElementsAre(RankId{3}, RankId{4}, RankId{5}));
  EXPECT_EQ(grid.PipelineStageOf(RankId{5}), 0);
}

TEST(RankGridTest, PipelineStagesAreSlowest) {
  const RankGrid grid =
      RankGrid::Make({.world_size = 8, .num_gpus = 2, .pipeline_parallel_size = 2}).value();
  EXPECT_EQ(grid.ranks_per_pipeline_stage(), 4);
  EXPECT_EQ(grid.num_ep_groups(), 4);
  EXPECT_EQ(grid.num_token_groups(), 2);
  EXPECT_EQ(grid.PipelineStageOf(RankId{3}), 0);
  EXPECT_EQ(grid.PipelineStageOf(RankId{4}), 1);
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
  EXPECT_EQ(grid.num_token_groups(), 2);
  EXPECT_TRUE(grid.CountsTokens(RankId{6}));
  EXPECT_FALSE(grid.CountsTokens(RankId{7}));
}

TEST(RankGridTest, EveryRankHasAPlaceOfItsOwn) {
  const RankGrid grid = RankGrid::Make({.world_size = 72,
                                        .num_gpus = 3,
                                        .pipeline_parallel_size = 3,
                                        .expert_tensor_parallel = 4})
                            .value();
  for (int32_t rank = 0; rank < 72; ++rank) {
    const int32_t ep_group = grid.EpGroupOf(RankId{rank});
    EXPECT_GE(ep_group, 0);
    EXPECT_LT(ep_group, grid.num_ep_groups());
    EXPECT_EQ(grid.RankOf(ep_group, grid.GpuOf(RankId{rank})), RankId{rank});
    // An EP group lies in one pipeline stage.
    EXPECT_EQ(grid.PipelineStageOf(grid.RankOf(ep_group, GpuId{0})),
              grid.PipelineStageOf(RankId{rank}));
  }
}

TEST(RankGridTest, WhatDoesNotDivideIsNamed) {
  EXPECT_EQ(Refusal({.world_size = 3, .num_gpus = 2}),
            "world_size: 3, expected a positive multiple of num_gpus 2");
  EXPECT_EQ(Refusal({.world_size = 0}),
            "world_size: 0, expected a positive multiple of num_gpus 1");
  EXPECT_EQ(Refusal({.world_size = 6, .num_gpus = 2, .pipeline_parallel_size = 2}),
            "world_size: 6, expected a positive multiple of pipeline_parallel_size 2 * num_gpus 2");
  EXPECT_EQ(Refusal({.world_size = 6,
                     .num_gpus = 2,
                     .pipeline_parallel_size = 3,
                     .expert_tensor_parallel = 2}),
            "world_size: 6, expected a positive multiple of pipeline_parallel_size 3 * "
            "expert_tensor_parallel 2 * num_gpus 2");
  EXPECT_EQ(Refusal({.pipeline_parallel_size = 0}), "pipeline_parallel_size: 0, expected >= 1");
  EXPECT_EQ(Refusal({.expert_tensor_parallel = -1}), "expert_tensor_parallel: -1, expected >= 1");
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  EXPECT_NE(Refusal({.world_size = 4,
                     .num_gpus = kMost,
                     .pipeline_parallel_size = kMost,
                     .expert_tensor_parallel = kMost}),
            "");
}

}  // namespace
}  // namespace eplb
