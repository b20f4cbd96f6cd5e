#include "server/core/state/counting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Layers of a report that have no tokens, by rank.
using Silent = std::function<std::vector<int32_t>(int32_t rank)>;

const std::vector<int32_t> kAllLayers = {0, 1, 2, 3};

wire::LoadReport ReportWithout(const std::vector<int32_t>& layers, int64_t first_step) {
  wire::LoadReport report = TestReport(first_step, first_step + 9);
  for (const int32_t layer : layers) report.counts.row(layer).setZero();
  return report;
}

// These ranks report windows of 10 steps from `step` on.
void Train(TestJob& job, int64_t step, int windows, const Silent& silent) {
  for (int window = 0; window < windows; ++window, step += 10) {
    job.daemon.Advance(absl::Seconds(1));
    for (int32_t rank = 0; rank < 3; ++rank) {
      job.daemon.Say(job.ranks[rank].session, ReportWithout(silent(rank), step));
    }
    job.daemon.AnswerSolve(Exchanged({}));
  }
}

std::vector<int32_t> None(int32_t) { return {}; }
std::vector<int32_t> All(int32_t) { return kAllLayers; }

TEST(CountingTest, AJobWithoutTokensIsNotCountingAfterTwoWindowsAndHasNoFigure) {
  ConnectedJob job;
  EXPECT_EQ(job.daemon.View().not_measured_reason(), "no load window is complete yet");
  Train(job, 0, 1, &All);
  EXPECT_EQ(job.daemon.View().not_counting_reason(), "") << "one window shows nothing";
  EXPECT_EQ(job.daemon.View().not_measured_reason(), "no tokens were counted in steps 0..9");
  Train(job, 10, 1, &All);
  v1::JobStatus view = job.daemon.View();
  EXPECT_THAT(view.not_counting_reason(), StartsWith("no rank has counted a token since step 0; "));
  EXPECT_FALSE(view.has_balancedness());
  EXPECT_FALSE(view.has_balancedness_static());
  EXPECT_TRUE(view.layer_balancedness().empty());
  EXPECT_EQ(view.coverage(), 1);
  EXPECT_EQ(job.daemon.CountEvents("not_counting"), 1);
  Train(job, 20, 10, &All);
  EXPECT_EQ(job.daemon.View().stalled(), "") << "it is not the decisions that are missing";
  EXPECT_EQ(job.daemon.CountEvents("not_counting"), 1);
  Train(job, 120, 1, &None);
  view = job.daemon.View();
  EXPECT_EQ(view.not_counting_reason(), "");
  EXPECT_EQ(view.not_measured_reason(), "");
  EXPECT_TRUE(view.has_balancedness());
  EXPECT_EQ(job.daemon.CountEvents("counting"), 1);
}

TEST(CountingTest, AFigureOfEarlierStepsIsNotShownForAJobThatCountsNoMore) {
  ConnectedJob job;
  Train(job, 0, 2, &None);
  EXPECT_TRUE(job.daemon.View().has_balancedness());
  Train(job, 20, 2, &All);
  EXPECT_FALSE(job.daemon.View().has_balancedness());
  EXPECT_THAT(job.daemon.View().not_counting_reason(), HasSubstr("since step 20"));
}

TEST(CountingTest, LayersThatNoRankCountsAreNamedAndHaveNoFigure) {
  ConnectedJob job;
  Train(job, 0, 2, [](int32_t) { return std::vector<int32_t>{1, 2, 3}; });
  const v1::JobStatus view = job.daemon.View();
  EXPECT_THAT(view.not_counting_reason(),
              StartsWith("no rank has counted a token of layers 1..3 since step 0; "));
  EXPECT_TRUE(view.has_balancedness());
  ASSERT_EQ(view.layer_balancedness_size(), 4);
  EXPECT_GT(view.layer_balancedness(0), 0);
  EXPECT_EQ(view.layer_balancedness(3), 0);
}

TEST(CountingTest, ARankWithoutTokensIsNamed) {
  ConnectedJob job;
  Train(job, 0, 5, &None);
  Train(job, 50, 2, [](int32_t rank) { return rank == 1 ? kAllLayers : std::vector<int32_t>{}; });
  EXPECT_THAT(job.daemon.View().not_counting_reason(),
              StartsWith("rank 1 has counted no token since step 50, other ranks have; "));
  EXPECT_TRUE(job.daemon.View().has_balancedness());
}

TEST(CountingTest, ARankWithoutTokensOfOneLayerIsNamedWithTheLayer) {
  ConnectedJob job;
  Train(job, 0, 2, [](int32_t rank) {
    return rank == 2 ? std::vector<int32_t>{0, 3} : std::vector<int32_t>{3};
  });
  EXPECT_THAT(job.daemon.View().not_counting_reason(),
              StartsWith("no rank has counted a token of layer 3 since step 0; rank 2 has counted "
                         "no token of layer 0 since step 0, other ranks have; "));
}

TEST(CountingTest, ATokenNowAndThenIsCounting) {
  ConnectedJob job;
  for (int64_t step = 0; step < 100; step += 20) {
    Train(job, step, 1, &All);
    EXPECT_EQ(job.daemon.View().not_counting_reason(), "");
    Train(job, step + 10, 1, &None);
  }
  EXPECT_EQ(job.daemon.CountEvents("not_counting"), 0);
}

TEST(CountingTest, TwoReportsAreEnoughWhileRanksAreAskedForLongerOnes) {
  Config config = TestConfig();
  config.report_every_steps = 1000;
  ConnectedJob job(config);
  Train(job, 0, 2, &All);
  EXPECT_EQ(job.daemon.View().report_every(), 10);
  EXPECT_THAT(job.daemon.View().not_counting_reason(), HasSubstr("since step 0"));
}

TEST(CountingTest, ARankThatReportsNothingIsNotNamed) {
  TestJob job;
  for (FakeRank& rank : job.ranks) rank.identity.reduce = wire::Reduce::kRoot;
  job.ConnectAll();
  for (int64_t step = 0; step < 50; step += 10) {
    job.daemon.Say(job.ranks[0].session, TestReport(step, step + 9));
  }
  EXPECT_EQ(job.daemon.View().not_counting_reason(), "");
  EXPECT_EQ(job.daemon.View().coverage(), 1);
}

// Six ranks; `report` is what a rank reports of the window that begins at a step, if anything.
v1::JobStatus ViewOfSix(
    const std::function<void(wire::Hello&)>& shape,
    const std::function<std::optional<wire::LoadReport>(int32_t, int64_t)>& report) {
  CoreHarness daemon(TestConfig());
  std::vector<SessionId> sessions;
  for (int32_t rank = 0; rank < 6; ++rank) {
    wire::Hello hello = TestHello(rank);
    hello.world_size = 6;
    shape(hello);
    sessions.push_back(daemon.Open());
    daemon.Say(sessions.back(), hello);
  }
  for (int64_t step = 0; step < 40; step += 10) {
    for (int32_t rank = 0; rank < 6; ++rank) {
      if (auto one = report(rank, step)) daemon.Say(sessions[rank], *std::move(one));
    }
  }
  return daemon.View();
}

void AsPipeline(wire::Hello& hello) {
  hello.pipeline_parallel_size = 2;
  hello.gpu = hello.rank % 3;
  hello.ep_group = hello.rank / 3;
}

TEST(CountingTest, LayersOfAnotherPipelineStageAreNotMissed) {
  const v1::JobStatus view = ViewOfSix(&AsPipeline, [](int32_t rank, int64_t step) {
    return ReportWithout(rank < 3 ? std::vector<int32_t>{2, 3} : std::vector<int32_t>{0, 1}, step);
  });
  EXPECT_EQ(view.last_window_last_step(), 39);
  EXPECT_EQ(view.not_counting_reason(), "");
}

TEST(CountingTest, ARankOfAPipelineStageIsComparedWithItsStage) {
  const v1::JobStatus view = ViewOfSix(&AsPipeline, [](int32_t rank, int64_t step) {
    if (rank == 4) return ReportWithout(kAllLayers, step);
    return ReportWithout(rank < 3 ? std::vector<int32_t>{2, 3} : std::vector<int32_t>{0, 1}, step);
  });
  EXPECT_THAT(view.not_counting_reason(), StartsWith("rank 4 has counted no token since step 0, "));
}

TEST(CountingTest, APipelineStageWithoutTokensIsNamedByItsLayers) {
  const v1::JobStatus view = ViewOfSix(&AsPipeline, [](int32_t rank, int64_t step) {
    return ReportWithout(rank < 3 ? std::vector<int32_t>{2, 3} : kAllLayers, step);
  });
  EXPECT_THAT(view.not_counting_reason(),
              StartsWith("no rank has counted a token of layers 2, 3 "));
  EXPECT_THAT(view.not_counting_reason(), Not(HasSubstr("rank 3")));
}

TEST(CountingTest, AFollowerOfAnExpertTensorGroupIsNotMissed) {
  const v1::JobStatus view = ViewOfSix(
      [](wire::Hello& hello) {
        hello.expert_tensor_parallel = 2;
        hello.gpu = hello.rank / 2;
        hello.ep_group = hello.rank % 2;
      },
      [](int32_t rank, int64_t step) -> std::optional<wire::LoadReport> {
        if (rank % 2 == 1) return std::nullopt;
        return TestReport(step, step + 9);
      });
  EXPECT_EQ(view.last_window_last_step(), 39);
  EXPECT_EQ(view.not_counting_reason(), "");
}

TEST(CountingTest, NothingIsDecidedWithoutTokens) {
  ConnectedJob job;
  Train(job, 0, 2, &All);
  EXPECT_FALSE(job.daemon.AnswerSolve(Exchanged({0})));
}

}  // namespace
}  // namespace eplb::core
