// Time saved, through the whole core: its basis, and what restarts of daemon and run leave of it.
#include "server/core/decisions/saved_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/core/state/memory.h"
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

// Buffered reports come at once, and the first steps after them at other times than later ones.
TEST(SavedTimeTest, TheFirstWindowsAfterAKillOnlyAddToIt) {
  int64_t step = 0;
  TestJob job = MovedJob(step);
  Train(job, step, 30, kPeak * 110 / 200);
  job.daemon.Restart();
  for (FakeRank& rank : job.ranks) rank.session = 0;
  job.ConnectAll();
  double before = job.daemon.View().saved_seconds();
  for (int i = 0; i < 40; ++i) {
    job.daemon.Advance(i < 3 ? absl::Milliseconds(1) : absl::Seconds(2.32));
    job.Report(step, step + 9);
    step += 10;
    ASSERT_TRUE(job.daemon.View().has_saved_seconds()) << i;
    const double now = job.daemon.View().saved_seconds();
    EXPECT_NEAR(now - before, kSavedByWindow * kToken, 0.02 * before) << i;
    before = now;
  }
}

TEST(SavedTimeTest, WindowsThatADaemonReadsAtOnceAfterAStallDoNotPriceATokenAnew) {
  int64_t step = 0;
  TestJob job = MovedJob(step);
  Train(job, step, 30, kPeak * 110 / 200);
  double before = job.daemon.View().saved_seconds();
  for (int i = 0; i < 40; ++i, step += 10) {
    job.daemon.Advance(i == 0   ? absl::Seconds(12 * 2.32)
                       : i < 12 ? absl::Milliseconds(1)
                                : absl::Seconds(2.32));
    job.Report(step, step + 9);
    const double now = job.daemon.View().saved_seconds();
    EXPECT_NEAR(now - before, kSavedByWindow * kToken, 0.02 * before) << i;
    before = now;
  }
}

TEST(SavedTimeTest, SlowStepsPriceTheirOwnWindowsAlone) {
  TestJob job;
  job.SetRunning(Exchanged({0, 1, 2, 3}), 3);
  job.ConnectAll();
  int64_t step = 0;
  Train(job, step, 40, kPeak);
  const double before = job.daemon.View().saved_seconds();
  for (int i = 0; i < 20; ++i, step += 10) {  // ten times as long
    job.daemon.Advance(absl::Seconds(100 * (0.1 + kToken * kPeak)));
    job.Report(step, step + 9);
  }
  // 20 of the 60 windows, of which the first still have the median of before.
  EXPECT_LT(job.daemon.View().saved_seconds(), before * (40 + 200) / 40);
  EXPECT_GT(job.daemon.View().saved_seconds(), before * (40 + 50) / 40);
}

// Switches the layers one by one, each in a window that lasts eight times as long, as where the
// ranks verify their memory after a switch. Two windows without a switch follow.
void SwitchInEveryWindow(TestJob& job, int64_t& step, bool to_static) {
  for (int done = 1; done <= 4; ++done) {
    job.Deliver();
    ASSERT_TRUE(job.VoteAndDeliver(step));
    job.daemon.Advance(absl::Seconds(8));
    job.Report(step, step + 9);
    step += 10;
  }
  Train(job, step, 2, to_static ? kPeak : kPeak * 110 / 200);
}

TEST(SavedTimeTest, WindowsWithASwitchDoNotPriceATokenBesideOthers) {
  Config config = TestConfig();
  config.settings.layers_per_chunk = 1;
  TestJob job(config);
  job.ConnectAll();
  int64_t step = 0;
  Train(job, step, 4, kPeak);
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
    SwitchInEveryWindow(job, step, false);
    ASSERT_TRUE(job.daemon.Ask(Rollback{0}).ok());
    SwitchInEveryWindow(job, step, true);
    ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
    Train(job, step, 1, kPeak);
  }
  EXPECT_THAT(job.daemon.View().saved_basis(), HasSubstr("a token costs 1 ms +- "));
}

// A store of 0.1.0 is such a one: its windows were counted against another layout.
TEST(SavedTimeTest, PausesWithoutTheirSavingsDoNotCount) {
  State state;
  Job job;
  wire::JobMemory memory;
  memory.account_windows = 4;
  memory.account_pause_seconds = 0.5;
  Recall(state, job, memory);
  EXPECT_EQ(job.decisions.account.pause_seconds, 0);
  memory.account_saved_peak_tokens = 100;
  Recall(state, job, memory);
  EXPECT_EQ(job.decisions.account.pause_seconds, 0.5);
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
