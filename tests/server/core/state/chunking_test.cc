#include "server/core/state/chunking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/core/decisions/decide.h"
#include "server/core/decisions/evaluate_candidate.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {

namespace {

using ::testing::HasSubstr;

// Each changed layer swaps one expert between GPU 0 and GPU 1: 1 MB each way, 1 ms at 1 GB/s.
Costs TestCosts() {
  Costs costs;
  costs.intra_bytes_per_s = 1e9;
  costs.expert.weight_bytes = 1'000'000;
  return costs;
}

std::vector<LayerMove> TestMoves() {
  return MovesOf(Exchanged({}), Exchanged({0, 1, 3}), TestCosts()).value();
}

TEST(ChunkingTest, EachChangedLayerHasItsPrice) {
  const std::vector<LayerMove> moves = TestMoves();
  ASSERT_EQ(moves.size(), 3);
  EXPECT_EQ(moves[2].next.layer, LayerId{3});
  EXPECT_EQ(moves[0].transfers, 2);
  EXPECT_EQ(moves[0].staging_rows, 1);
  EXPECT_EQ(moves[0].incoming_bytes, 1'000'000);
  EXPECT_DOUBLE_EQ(moves[0].link_seconds, 0.001);
}

TEST(ChunkingTest, ABoundaryHasAsManyLayersAsItsPauseAllows) {
  const std::vector<LayerMove> moves = TestMoves();
  const auto cut = [&moves](int32_t layers, double pause, double rate) {
    std::vector<size_t> sizes;
    std::vector<Chunk> chunks = CutIntoBoundaries(
        moves, {.layers_per_chunk = layers, .max_pause_seconds = pause, .seconds_per_byte = rate});
    Placement in_force = Exchanged({});
    for (Chunk& chunk : chunks) {
      sizes.push_back(chunk.layers.size());
      EXPECT_TRUE(Complete(in_force, chunk).ok());
      in_force = *chunk.after;
      EXPECT_EQ(chunk.digest, DigestOf(in_force));
    }
    EXPECT_EQ(in_force, Exchanged({0, 1, 3}));
    return sizes;
  };
  EXPECT_EQ(cut(4, 1, 0), (std::vector<size_t>{3}));
  EXPECT_EQ(cut(2, 1, 0), (std::vector<size_t>{2, 1}));
  EXPECT_EQ(cut(4, 0.0025, 1e-12), (std::vector<size_t>{2, 1}));
  EXPECT_EQ(cut(4, 0.0001, 0), (std::vector<size_t>{1, 1, 1}));  // never less than one
  EXPECT_EQ(cut(4, 1, 4e-7), (std::vector<size_t>{2, 1}));       // 0.4 s a layer, as measured
  EXPECT_EQ(cut(4, 0.015, 0), (std::vector<size_t>{1, 1, 1}));  // 10 ms a layer, as long as none is
}

TEST(ChunkingTest, ALayerThatNeedsALongerBoundaryThanAllowedIsLeftOutByName) {
  const Load load = Load::FromCounts(TestReport(0, 9).counts).value();
  const Placement incumbent = Exchanged({});
  const Placement candidate = Exchanged({0, 1});
  CandidateInput question{.load = load,
                          .last_step = 9,
                          .incumbent = incumbent,
                          .candidate = candidate,
                          .staging_rows = 2,
                          .limits = {.layers_per_chunk = 2, .max_pause_seconds = 0.0005},
                          .migration = {.weight_bytes = 1'000'000},
                          .costs = TestCosts()};
  CandidateDecision verdict = EvaluateCandidate(question).value();
  EXPECT_TRUE(verdict.chunks.empty());
  EXPECT_EQ(
      verdict.too_long,
      "steps 0..9: layers 0, 1 left out, a pause of 1 ms is predicted and migration.max_pause "
      "is 0.5 ms");
  // The slowest boundary measured only makes chunks shorter.
  question.limits.max_pause_seconds = 0.5;
  question.limits.seconds_per_byte = 1;
  verdict = EvaluateCandidate(question).value();
  EXPECT_EQ(verdict.too_long, "");
  EXPECT_EQ(verdict.chunks.size(), 2);
  // Three boundaries with fewer bytes say that this one will be no shorter.
  question.limits.measured = {{1000, 1.5}, {2000, 1}};
  EXPECT_EQ(EvaluateCandidate(question)->chunks.size(), 2);
  question.limits.measured.push_back({1'000'000, 2});
  verdict = EvaluateCandidate(question).value();
  EXPECT_TRUE(verdict.chunks.empty());
  EXPECT_EQ(verdict.too_long,
            "steps 0..9: layers 0, 1 left out, a pause of 1 s is predicted from boundaries "
            "with fewer bytes and migration.max_pause is 0.5 s");
}

// Layer 0 goes round: each expert one slot on, so that it takes five exchanges. A row is 1 MB, and
// 1 ms at 1 GB/s.
Placement Turned() {
  IndexMatrix slots = Exchanged({}).physical_to_logical_map();
  slots.row(0) << 2, 3, 4, 5, 0, 1;
  return Placement::FromSlots(Exchanged({}).topology(), slots).value();
}

std::vector<LayerMove> Split(const BoundaryLimits& limits) {
  const Placement incumbent = Exchanged({});
  std::vector<LayerMove> moves = MovesOf(incumbent, Turned(), TestCosts()).value();
  EXPECT_EQ(moves.size(), 1);
  return SplitToFit(incumbent, std::move(moves), TestCosts(), limits).value();
}

TEST(PartsTest, ALayerThatTakesTooLongMovesInPartsThatDoNot) {
  const BoundaryLimits limits = {
      .layers_per_chunk = 4, .max_pause_seconds = 0.0015, .seconds_per_byte = 1e-9};
  const std::vector<LayerMove> parts = Split(limits);
  EXPECT_GT(parts.size(), 1);
  EXPECT_EQ(parts.back().next, Turned().Layer(LayerId{0}));
  Placement in_force = Exchanged({});
  std::vector<Chunk> chunks = CutIntoBoundaries(parts, limits);
  EXPECT_EQ(chunks.size(), parts.size());
  for (Chunk& chunk : chunks) {
    EXPECT_LE(chunk.incoming_bytes, 1'000'000);
    ASSERT_TRUE(Complete(in_force, chunk).ok());
    in_force = *chunk.after;
  }
  EXPECT_EQ(in_force, Turned());
  EXPECT_EQ(Split({.max_pause_seconds = 1, .seconds_per_byte = 1e-9}).size(), 1);
}

TEST(PartsTest, TheFirstBoundaryOfAJobIsAShortOne) {
  // At 10 ns a byte, which was not measured, a row takes 10 ms.
  const std::vector<LayerMove> parts = Split({.max_pause_seconds = 0.011});
  ASSERT_EQ(parts.size(), 2);
  EXPECT_EQ(parts[0].incoming_bytes, 1'000'000);
  EXPECT_EQ(parts[1].next, Turned().Layer(LayerId{0}));
}

TEST(PartsTest, AChunkIsCutAgainOrJoinedByWhatWasMeasured) {
  const BoundaryLimits slow = {
      .layers_per_chunk = 4, .max_pause_seconds = 0.0015, .seconds_per_byte = 1e-9};
  const Placement incumbent = Exchanged({});
  const std::vector<LayerMove> whole = Split({.max_pause_seconds = 1, .seconds_per_byte = 1e-9});
  const Chunk chunk = CutIntoBoundaries(whole, slow).front();
  const std::vector<Chunk> parts = CutAgain(incumbent, chunk, TestCosts(), slow).value();
  ASSERT_EQ(parts.size(), 2);
  EXPECT_EQ(*parts[0].after, incumbent.WithLayers(std::as_const(parts[0].layers)).value());
  BoundaryLimits fast = slow;
  fast.seconds_per_byte = 1e-10;
  Chunk joined = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    Chunk kept = joined;
    EXPECT_FALSE(Join(parts[i], slow, kept));
    EXPECT_EQ(kept.incoming_bytes, joined.incoming_bytes);
    EXPECT_TRUE(Join(parts[i], fast, joined));
  }
  EXPECT_EQ(joined.layers, chunk.layers);
  EXPECT_EQ(joined.after, nullptr);
}

TEST(ChunkingTest, ChunksOfAJobBecomeShorterWithWhatItsBoundariesTake) {
  Config config = TestConfig();
  config.settings.layers_per_chunk = 4;
  config.settings.max_pause = absl::Milliseconds(100);
  TestJob job(config);
  job.Propose(Exchanged({0, 1, 2, 3}));  // in one chunk: nothing was measured
  job.Deliver();
  EXPECT_EQ(job.NewestPlan().num_chunks(), 1);
  ASSERT_TRUE(job.VoteAndDeliver(12));  // 0.25 s for 100 bytes: a layer, 24 bytes, takes 60 ms
  ASSERT_TRUE(job.daemon.Ask(Rollback{}).ok());
  EXPECT_EQ(job.NewestPlan().num_chunks(), 4);
}

TEST(ChunkingTest, AJobLearnsFromItsBoundaries) {
  Config config = TestConfig();
  config.settings.every_steps = 10;
  TestJob job(config);
  job.Propose(Exchanged({0, 1}));
  job.Deliver();
  ASSERT_TRUE(job.VoteAndDeliver(12));  // 0.25 s for 100 bytes: 2.5 ms a byte
  ASSERT_EQ(job.daemon.state(), "IDLE");
  job.Report(20, 29);
  job.daemon.AnswerSolve(Exchanged({}));
  // A layer brings 24 bytes into a GPU, 60 ms: one layer in 100 ms.
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"max_pause", absl::Milliseconds(100)}}}).ok());
  ASSERT_TRUE(job.daemon.Ask(Rebalance{.force = true}).ok());
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.NewestPlan().num_chunks(), 2);
}

TEST(ChunkingTest, AMaxPauseThatEveryBoundaryExceedsIsKeptAfterThreeOfThem) {
  Config config = TestConfig();
  config.settings.every_steps = 10;
  config.settings.layers_per_chunk = 1;
  config.settings.max_pause = absl::Milliseconds(100);
  TestJob job(config);
  for (FakeRank& rank : job.ranks) rank.identity.weight_bytes = 1000;  // it tells 100 received
  job.Propose(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);  // 0.25 s each
  EXPECT_EQ(job.daemon.CountEvents("pause_exceeded"), kLeastMeasured);
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_PARTIAL);
  EXPECT_THAT(plan.reason(),
              HasSubstr("as chunks of fewer bytes did, and migration.max_pause is 0.1 s"));
  job.Report(20, 29);
  job.daemon.AnswerSolve(Exchanged({}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_THAT(job.daemon.LastReason("left_out"), HasSubstr("layers 0, 1, 2 left out"));
}

// Returns the rows for ranks with room for five experts in each of the given numbers of layers.
int64_t RowsPerChunk(const std::vector<int64_t>& staging_layers) {
  Job job;
  job.current.emplace(*Topology::Make(TestShape()), *RankGrid::Make({}));
  for (const int64_t layers : staging_layers) {
    Rank& rank = job.current->ranks.emplace_back();
    rank.staging_layers = layers;
    rank.staging_rows = 5;
  }
  return RowsPerChunk(job);
}

TEST(StagingTest, AChunkHasTheRowsOfTheRankWithLeastRoom) {
  EXPECT_EQ(RowsPerChunk({4, 4}), 20);
  EXPECT_EQ(RowsPerChunk({9, 2, 3}), 10);
  EXPECT_EQ(RowsPerChunk({int64_t{1} << 62, 3}), 15);
}

TEST(StagingTest, ARankThatDidNotSayHowManyLayersItHoldsHasRoomForTheClientsDefault) {
  EXPECT_EQ(RowsPerChunk({0, 0}), 5 * kUnsaidStagingLayers);
  EXPECT_EQ(RowsPerChunk({0, 3}), 15);
}

TEST(StagingTest, ABoundaryHasAsManyLayersAsTheRowsOfEveryGpuAllow) {
  const std::vector<LayerMove> moves = TestMoves();  // a row into GPU 0 and one into GPU 1 each
  EXPECT_EQ(moves[0].rows[0], 1);
  EXPECT_EQ(moves[0].rows[1], 1);
  EXPECT_EQ(moves[0].rows.size(), static_cast<size_t>(TestShape().num_gpus));
  const auto cut = [&moves](int64_t rows) {
    const std::vector<Chunk> chunks = CutIntoBoundaries(
        moves, {.layers_per_chunk = 64, .rows_per_chunk = rows, .max_pause_seconds = 1});
    std::vector<size_t> sizes;
    sizes.reserve(chunks.size());
    for (const Chunk& chunk : chunks) sizes.push_back(chunk.layers.size());
    return sizes;
  };
  EXPECT_EQ(cut(3), (std::vector<size_t>{3}));
  EXPECT_EQ(cut(2), (std::vector<size_t>{2, 1}));
  EXPECT_EQ(cut(1), (std::vector<size_t>{1, 1, 1}));
}

TEST(StagingTest, TheRankWithFewestRowsCounts) {
  core::Run run(*Topology::Make(TestShape()), *RankGrid::Make({}));
  for (const int64_t rows : {7, 3, 5}) run.ranks.emplace_back().staging_rows = rows;
  EXPECT_EQ(LeastStagingRows(run), 3);
}

TEST(StagingTest, APlanIsCutForTheSmallestStaging) {
  TestJob job;
  for (FakeRank& rank : job.ranks) rank.identity.staging_rows = 1;
  job.ranks[1].identity.staging_layers = 1;
  job.ranks[2].identity.staging_layers = 9;
  job.Propose(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.NewestPlan().num_chunks(), 4);
}

TEST(StagingTest, LayersAreLeftOutWhenTheSmallestStagingIsTooSmall) {
  TestJob job;
  job.ranks[2].identity.staging_rows = 0;
  job.ConnectAll();
  job.Report(0, 9);
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_THAT(job.daemon.LastReason("left_out"), HasSubstr("the ranks have 0"));
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 0);
}

// Version 1 is committed, then a run comes whose ranks have the staging that `shrink` leaves.
template <class Shrink>
absl::StatusOr<ChangeOutcome> RollBackWith(TestJob& job, Shrink shrink) {
  job.Propose(Exchanged({0, 1}));
  job.Deliver();
  EXPECT_TRUE(job.VoteAndDeliver(12));
  for (FakeRank& rank : job.ranks) shrink(rank.identity);
  job.ConnectAll();
  return job.daemon.Ask(Rollback{});
}

TEST(StagingTest, ARollbackNeedsTheRanksStaging) {
  TestJob job;
  const absl::StatusOr<ChangeOutcome> back =
      RollBackWith(job, [](wire::Hello& identity) { identity.staging_rows = 0; });
  EXPECT_THAT(std::string(back.status().message()),
              HasSubstr("layer 0 needs 1 rows of staging on one GPU, the ranks have 0"));
}

TEST(StagingTest, ARollbackHasAsManyChunksAsTheRanksStagingNeeds) {
  TestJob job;
  ASSERT_TRUE(RollBackWith(job, [](wire::Hello& identity) {
                identity.staging_rows = 1;
                identity.staging_layers = 1;
              }).ok());
  EXPECT_EQ(job.NewestPlan().num_chunks(), 2);
}

}  // namespace

}  // namespace eplb::core
