#include "server/core/decisions/gpu_speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/core/decisions/question.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Windows of a job under its static placement, with step times of GPUs of these speeds. Every solve
// is answered by the current placement.
class SpeedJob {
 public:
  explicit SpeedJob(Config config = TestConfig()) : job_(std::move(config)) { job_.ConnectAll(); }

  CoreHarness& daemon() { return job_.daemon; }
  void Restart() {
    daemon().Restart();
    job_.ConnectAll();
  }

  void Report(int windows, const std::vector<double>& speeds) {
    for (int window = 0; window < windows; ++window) {
      for (size_t rank = 0; rank < job_.ranks.size(); ++rank) {
        wire::LoadReport report = TestReport(next_step_, next_step_ + 9);
        report.step_seconds = (rank == 0 ? 2400e-6 : 240e-6) / speeds[rank];
        daemon().Say(job_.ranks[rank].session, report);
      }
      next_step_ += 10;
      if (daemon().pending_solve()) newest_ = daemon().pending_solve();
      daemon().AnswerSolve(Exchanged({}));
    }
  }
  const PlannerQuestion& newest_question() const { return newest_->question->planner; }

 private:
  TestJob job_;
  int64_t next_step_ = 0;
  std::optional<Solve> newest_;
};

TEST(GpuSpeedsTest, ASlowGpuIsNamedAndNoDecisionUsesItBeforeAnOperatorSaysSo) {
  SpeedJob job;
  job.Report(7, {1, 1, 0.75});
  EXPECT_THAT(job.daemon().View().gpu_speeds(), IsEmpty());
  job.Report(4, {1, 1, 0.75});
  EXPECT_EQ(job.daemon().CountEvents("gpu_slow"), 1);
  EXPECT_THAT(
      job.daemon().LastReason("gpu_slow"),
      StartsWith("GPU 2 runs at 0.75 of the median GPU: in the median of 8 windows its step "
                 "took 0.32 ms, 0.24 ms are expected for its tokens; gpu_speeds is observe"));
  EXPECT_EQ(job.newest_question().speeds, nullptr);
  const v1::JobStatus view = job.daemon().View();
  ASSERT_EQ(view.gpu_speeds_size(), 1);
  EXPECT_EQ(view.gpu_speeds(0).gpu(), 2);
  EXPECT_EQ(view.gpu_speeds(0).measured(), 0.75);
  EXPECT_EQ(view.gpu_speeds(0).in_use(), 1);
  EXPECT_THAT(view.last_reason(), HasSubstr("kept")) << "the decision's reason stays";
}

TEST(GpuSpeedsTest, AppliedSpeedsReachThePolicyAndEveryFigure) {
  SpeedJob job;
  job.Report(8, {1, 1, 0.5});
  ASSERT_TRUE(job.daemon().Ask(SetPolicy{{{"gpu_speeds", "apply"}}}).ok());
  job.Report(2, {1, 1, 0.5});
  ASSERT_NE(job.newest_question().speeds, nullptr);
  EXPECT_THAT(job.newest_question().speeds->speeds(), ::testing::ElementsAre(1, 1, 0.5));
  job.Report(1, {1, 1, 0.5});
  const v1::JobStatus view = job.daemon().View();
  EXPECT_EQ(view.gpu_speeds(0).in_use(), 0.5);
  // GPUs have 200, 20 and 20 / 0.5 tokens a layer.
  EXPECT_NEAR(view.balancedness(), (200 + 20 + 40) / 3.0 / 200, 1e-12);
  EXPECT_THAT(view.last_reason(),
              HasSubstr("; GPU loads are tokens / speed: GPU 2 0.50 (measured)"));
  ASSERT_TRUE(job.daemon().Ask(SetPolicy{{{"gpu_speeds", "off"}}}).ok());
  job.Report(4, {1, 1, 0.5});
  EXPECT_EQ(job.newest_question().speeds, nullptr);
  EXPECT_THAT(job.daemon().View().gpu_speeds(), IsEmpty());
}

TEST(GpuSpeedsTest, AGpuThatIsFastAgainIsToldOnce) {
  SpeedJob job;
  job.Report(8, {1, 1, 0.6});
  job.Report(12, {1, 1, 1});
  EXPECT_EQ(job.daemon().CountEvents("gpu_recovered"), 1);
  EXPECT_THAT(job.daemon().LastReason("gpu_recovered"), HasSubstr("it was named at 0.60"));
  EXPECT_THAT(job.daemon().View().gpu_speeds(), IsEmpty());
}

TEST(GpuSpeedsTest, ADaemonThatStartsAgainKnowsTheSlowGpus) {
  SpeedJob job;
  job.Report(8, {1, 0.7, 1});
  ASSERT_EQ(job.daemon().View().gpu_speeds_size(), 1);
  job.Restart();
  ASSERT_EQ(job.daemon().View().gpu_speeds_size(), 1);
  EXPECT_EQ(job.daemon().View().gpu_speeds(0).measured(), 0.7);
  EXPECT_THAT(job.daemon().View().gpu_speeds(0).reason(), HasSubstr("before this daemon started"));
}

TEST(GpuSpeedsTest, StatedSpeedsAndAvoidedGpusGoBeforeMeasuredOnes) {
  Config config = TestConfig();
  config.settings.gpu_speeds = wire::SpeedMode::kApply;
  config.settings.stated_speeds = {{1, 0.9}, {2, 2.0}};
  config.settings.avoid_gpus = {1};
  SpeedJob job(config);
  job.Report(10, {1, 1, 0.6});
  // The two coldest of 6 experts have 20 of 240 tokens a layer; the other two GPUs share 220.
  EXPECT_THAT(job.newest_question().speeds->speeds(), ::testing::ElementsAre(1, 0.18, 2));
  const v1::JobStatus view = job.daemon().View();
  ASSERT_EQ(view.gpu_speeds_size(), 2);
  EXPECT_EQ(view.gpu_speeds(0).source(), "avoided");
  EXPECT_EQ(view.gpu_speeds(1).source(), "stated");
  EXPECT_EQ(view.gpu_speeds(1).measured(), 0.6) << "shown, although it is not used";
}

TEST(GpuSpeedsTest, APolicyWithoutSpeedsPlansWithoutThemAndTellsOnce) {
  Config config = TestConfig();
  config.settings.policy = "deepseek";
  config.settings.stated_speeds = {{2, 0.5}};
  SpeedJob job(config);
  job.Report(8, {1, 1, 1});
  EXPECT_EQ(job.newest_question().speeds, nullptr);
  EXPECT_EQ(job.daemon().CountEvents("speeds_unused"), 1);
  EXPECT_THAT(job.daemon().LastReason("speeds_unused"),
              HasSubstr("policy deepseek plans for equal GPUs"));
  ASSERT_TRUE(job.daemon().Ask(SetPolicy{{{"name", "balanced"}}}).ok());
  job.Report(2, {1, 1, 1});
  EXPECT_NE(job.newest_question().speeds, nullptr);
}

TEST(GpuSpeedsTest, WhatDoesNotFitTheJobIsRefusedByName) {
  SpeedJob job;
  const auto refused = [&job](const SettingsPatch& patch) {
    return std::string(job.daemon().Ask(SetPolicy{patch}).status().message());
  };
  EXPECT_EQ(refused({{"avoid_gpus", "3"}}), "avoid_gpus names GPU 3, the job has GPUs 0..2");
  EXPECT_EQ(refused({{"stated_speeds", "1:1,9:1"}}),
            "stated_speeds names GPU 9, the job has GPUs 0..2");
  EXPECT_EQ(refused({{"avoid_gpus", "0,1,2"}}), "avoid_gpus names all 3 GPUs of the job");
  EXPECT_EQ(refused({{"name", "deepseek"}, {"hierarchy", "soft"}}),
            "hierarchy is soft, which policy deepseek does not take");
  EXPECT_EQ(job.daemon().View().policy().avoid_gpus(), "");
  // From a configuration it is told once, and decisions go on.
  Config config = TestConfig();
  config.settings.avoid_gpus = {7};
  SpeedJob configured(config);
  configured.Report(6, {1, 1, 1});
  EXPECT_EQ(configured.daemon().CountEvents("speeds_unused"), 1);
  EXPECT_EQ(configured.newest_question().speeds, nullptr);
}

TEST(GpuSpeedsTest, TheHierarchyReachesThePolicy) {
  SpeedJob job;
  job.Report(2, {1, 1, 1});
  EXPECT_EQ(job.newest_question().options.policy.hierarchy, std::nullopt);
  ASSERT_TRUE(job.daemon().Ask(SetPolicy{{{"hierarchy", "soft"}}}).ok());
  job.Report(2, {1, 1, 1});
  EXPECT_EQ(job.newest_question().options.policy.hierarchy, Hierarchy::kSoft);
}

TEST(GpuSpeedsTest, TheStepTimeOfARankIsThatOfItsNewestReportThatHasOne) {
  ConnectedJob job;
  EXPECT_FALSE(job.daemon.View().ranks(1).has_step_seconds());
  wire::LoadReport report = TestReport(0, 9);
  report.step_seconds = 0.25;
  job.daemon.Say(job.ranks[1].session, report);
  job.daemon.Say(job.ranks[1].session, TestReport(10, 19));
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.ranks(1).step_seconds(), 0.25);
  EXPECT_EQ(view.ranks(1).gpu(), 1);
  EXPECT_FALSE(view.ranks(0).has_step_seconds());
}

TEST(GpuSpeedsTest, AStepTimeThatIsNoneEndsTheSession) {
  ConnectedJob job;
  wire::LoadReport report = TestReport(0, 9);
  report.step_seconds = -1;
  job.daemon.Say(job.ranks[0].session, report);
  ASSERT_TRUE(job.ClosedWith(0).has_value());
  EXPECT_THAT(std::string(job.ClosedWith(0)->message()), HasSubstr("step_seconds is -1"));
}

TEST(AvoidedSpeedTest, ItIsWhatTheColdestExpertsOfMostLayersHave) {
  const Topology topology =
      Topology::Make({.num_layers = 4, .num_experts = 8, .num_slots = 8, .num_gpus = 4}).value();
  LoadMatrix counts = LoadMatrix::Constant(4, 8, 100);
  EXPECT_EQ(AvoidedSpeed(*Load::FromCounts(counts), topology, GpuId{0}, 1), 1) << "none is cold";
  counts.leftCols(2) = 10;
  // 20 tokens on the avoided GPU, 600 on three others.
  EXPECT_EQ(AvoidedSpeed(*Load::FromCounts(counts), topology, GpuId{0}, 1), 0.1);
  counts.row(3) = 100;
  EXPECT_EQ(AvoidedSpeed(*Load::FromCounts(counts), topology, GpuId{0}, 1), 0.1)
      << "one layer of four does not decide";
  counts.leftCols(2) = 0;
  EXPECT_EQ(AvoidedSpeed(*Load::FromCounts(counts), topology, GpuId{0}, 1), kLeastAvoided);
}

}  // namespace
}  // namespace eplb::core
