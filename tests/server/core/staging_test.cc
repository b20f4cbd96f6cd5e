#include "server/core/staging.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

Job JobOf(int32_t layers_per_chunk, const std::vector<int64_t>& staging_layers) {
  Job job;
  job.settings.layers_per_chunk = layers_per_chunk;
  job.current.emplace(*Topology::Make(TestShape()), *RankGrid::Make({}));
  for (const int64_t layers : staging_layers) {
    job.current->ranks.emplace_back().staging_layers = layers;
  }
  return job;
}

TEST(StagingTest, AChunkHasAsManyLayersAsTheSettingsAndEveryRankAllow) {
  EXPECT_EQ(LayersPerChunk(JobOf(4, {4, 4})), 4);
  EXPECT_EQ(LayersPerChunk(JobOf(4, {9, 2, 3})), 2);
  EXPECT_EQ(LayersPerChunk(JobOf(2, {9, 9})), 2);
  EXPECT_EQ(LayersPerChunk(JobOf(4, {int64_t{1} << 40})), 4);
}

TEST(StagingTest, ARankThatDidNotSayHowManyLayersItHoldsSetsNoLimit) {
  EXPECT_EQ(LayersPerChunk(JobOf(4, {0, 0})), 4);
  EXPECT_EQ(LayersPerChunk(JobOf(4, {0, 3})), 3);
}

TEST(StagingTest, TheRankWithFewestRowsCounts) {
  Incarnation incarnation(*Topology::Make(TestShape()), *RankGrid::Make({}));
  for (const int64_t rows : {7, 3, 5}) incarnation.ranks.emplace_back().staging_rows = rows;
  EXPECT_EQ(LeastStagingRows(incarnation), 3);
}

TEST(StagingTest, APlanIsCutForTheSmallestStagingAndTheLimitIsTold) {
  TestJob job;
  job.ranks[1].identity.staging_layers = 1;
  job.ranks[2].identity.staging_layers = 9;
  job.Propose(Exchanged({0, 1, 2, 3}));
  EXPECT_NE(job.daemon.LastReason("chunks_limited").find("at most 1 layer, not 2"),
            std::string::npos);
  EXPECT_EQ(job.daemon.core().Plans(kJob, 1)->front().num_chunks, 4);
}

TEST(StagingTest, LayersAreLeftOutWhenTheSmallestStagingIsTooSmall) {
  TestJob job;
  job.ranks[2].identity.staging_rows = 0;
  job.ConnectAll();
  job.Report(0, 9);
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_NE(job.daemon.LastReason("left_out").find("the ranks have 0"), std::string::npos);
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 0);
}

// Version 1 is committed, then a launch comes whose ranks have the staging that `shrink` leaves.
template <class Shrink>
absl::StatusOr<ChangeOutcome> RollBackWith(TestJob& job, Shrink shrink) {
  job.Propose(Exchanged({0, 1}));
  job.Deliver();
  EXPECT_TRUE(job.Vote(12));
  job.Deliver();
  for (FakeRank& rank : job.ranks) shrink(rank.identity);
  job.ConnectAll();
  return job.daemon.Ask(Rollback{});
}

TEST(StagingTest, ARollbackNeedsTheRanksStaging) {
  TestJob job;
  const absl::StatusOr<ChangeOutcome> back =
      RollBackWith(job, [](wire::Hello& identity) { identity.staging_rows = 0; });
  EXPECT_NE(std::string(back.status().message())
                .find("layer 0 needs 1 rows of staging on one GPU, the ranks have 0"),
            std::string::npos)
      << back.status();
}

TEST(StagingTest, ARollbackHasAsManyChunksAsTheRanksStagingNeeds) {
  TestJob job;
  ASSERT_TRUE(RollBackWith(job, [](wire::Hello& identity) { identity.staging_layers = 1; }).ok());
  EXPECT_EQ(job.daemon.core().Plans(kJob, 1)->front().num_chunks, 2);
}

}  // namespace
}  // namespace eplb::core
