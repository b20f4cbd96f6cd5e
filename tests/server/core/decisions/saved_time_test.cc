// Time saved, through the whole core: its basis, and what restarts of daemon and run leave of it.
#include "server/core/decisions/saved_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kPeak = 4 * 3 * 200 / 10.0;            // tokens of a step under the static layout
constexpr double kToken = 1e-3;                         // seconds of one of them
constexpr double kPauses = 0.5;                         // seconds, of two chunks
constexpr double kSavedByWindow = 4 * 3 * (200 - 110);  // tokens, once experts 1 and 2 exchanged

// Reports `windows` windows of 10 steps, which last in proportion to their fullest GPUs.
void Train(TestJob& job, int64_t& step, int windows, double peak) {
  for (int i = 0; i < windows; ++i, step += 10) {
    job.daemon.Advance(absl::Seconds(10 * (0.1 + kToken * peak)));
    job.Report(step, step + 9);
  }
}

// Windows under the static layout, then under one that is even; `step` is the next one.
TestJob MovedJob(int64_t& step) {
  TestJob job;
  job.ConnectAll();
  Train(job, step, 6, kPeak);
  EXPECT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  job.CommitAll(step);
  Train(job, step, 12, kPeak * 110 / 200);
  return job;
}

TEST(SavedTimeTest, WithoutASampleThereIsNoFigureButTheReason) {
  TestJob job;
  job.ConnectAll();
  EXPECT_FALSE(job.daemon.View().has_saved_seconds());
  EXPECT_EQ(job.daemon.View().saved_basis(), "not known: no load window is measured yet");
  job.Report(0, 9);
  EXPECT_FALSE(job.daemon.View().has_saved_seconds());
  EXPECT_EQ(job.daemon.View().saved_basis(), "not known: the time of a step is not measured yet");
}

TEST(SavedTimeTest, StepTimesShowTheTimeOfATokenWithoutAGivenPrice) {
  int64_t step = 0;
  const TestJob job = MovedJob(step);
  const v1::JobStatus view = job.daemon.View();
  EXPECT_NEAR(view.saved_seconds(), 12 * kSavedByWindow * kToken - kPauses, 1e-3);
  EXPECT_THAT(view.saved_basis(),
              StartsWith("fullest GPUs of each window against one slot per expert"));
  EXPECT_THAT(view.saved_basis(), HasSubstr("a token costs 1 ms +- "));
  EXPECT_THAT(view.saved_basis(), HasSubstr("measured from the step times of"));
}

TEST(SavedTimeTest, StepsThatAllLastAsLongLeaveTheAssumption) {
  TestJob job;
  job.SetRunning(Exchanged({0, 1, 2, 3}), 3);
  job.ConnectAll();
  int64_t step = 0;
  Train(job, step, 20, kPeak);
  const v1::JobStatus view = job.daemon.View();
  EXPECT_THAT(view.saved_basis(), HasSubstr("assumes that experts take half of a step"));
  const double half = 0.5 * (0.1 + kToken * kPeak) / (kPeak * 110 / 200);
  EXPECT_NEAR(view.saved_seconds() / (20 * kSavedByWindow * half), 1, 0.02);
}

TEST(SavedTimeTest, PausesAreSubtracted) {
  Config config = TestConfig();
  config.costs.token_seconds = 1e-6;
  TestJob job(config);
  job.Propose(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.spent_seconds(), kPauses);
  EXPECT_EQ(view.saved_seconds(), -kPauses) << "the static layout has one slot per expert";
}

TEST(SavedTimeTest, AKilledDaemonLosesAtMostAMinuteOfIt) {
  int64_t step = 0;
  TestJob job = MovedJob(step);
  const double before = job.daemon.View().saved_seconds();
  Train(job, step, 30, kPeak * 110 / 200);  // 70 seconds
  job.daemon.Restart();
  const v1::JobStatus view = job.daemon.View();
  EXPECT_GE(view.saved_seconds(), before - 1e-9) << "no rank is back yet";
  EXPECT_THAT(view.saved_basis(), HasSubstr("a token costs 1 ms +- "));
  for (FakeRank& rank : job.ranks) rank.session = 0;
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().saved_seconds(), view.saved_seconds());
}

TEST(SavedTimeTest, TheNextRunContinuesIt) {
  int64_t step = 0;
  TestJob job = MovedJob(step);
  const double before = job.daemon.View().saved_seconds();
  job.FinishAll();
  job.Relaunch("run2");
  job.ConnectAll();
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.run_id(), "run2");
  EXPECT_NEAR(view.saved_seconds(), before, 1e-9);
  EXPECT_THAT(view.saved_basis(), StartsWith("earlier runs alone; of this one not known"));
}

}  // namespace
}  // namespace eplb::core
