#include "server/core/state/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

constexpr WindowLimits kThreeRanks = {
    .num_reporters = 3, .report_every = 10, .min_coverage = 1, .max_pending = 2, .max_complete = 3};

ReportOutcome Add(Windows& windows, int32_t rank, int64_t first, int64_t last,
                  const WindowLimits& limits = kThreeRanks) {
  return AddReport(windows, TestReport(first, last), rank, limits);
}

void Complete(Windows& windows, int64_t first, int64_t last) {
  for (int32_t rank = 0; rank < 3; ++rank) Add(windows, rank, first, last);
}

class WindowsTest : public ::testing::Test {
 protected:
  Windows windows_;
};

TEST_F(WindowsTest, TheLastReporterCompletesAWindowWithTheSumOverRanks) {
  EXPECT_FALSE(Add(windows_, 0, 0, 9).completed);
  EXPECT_FALSE(Add(windows_, 2, 0, 9).completed);
  EXPECT_TRUE(Add(windows_, 1, 0, 9).completed);
  ASSERT_EQ(windows_.complete.size(), 1u);
  EXPECT_EQ(windows_.complete[0].load->counts()(0, 0), 300);
  EXPECT_EQ(windows_.complete[0].load->counts()(3, 5), 30);
  EXPECT_TRUE(windows_.pending.empty());
}

TEST_F(WindowsTest, CoverageCompletesAWindowWithoutTheSlowestRankAndItsLateReportIsIgnored) {
  WindowLimits limits = kThreeRanks;
  limits.min_coverage = 0.6;  // ceil(1.8) = 2
  Windows windows;
  EXPECT_FALSE(Add(windows, 0, 0, 9, limits).completed);
  EXPECT_TRUE(Add(windows, 1, 0, 9, limits).completed);
  EXPECT_FALSE(Add(windows, 2, 0, 9, limits).completed);
  EXPECT_EQ(windows.complete.back().load->counts()(0, 0), 200);
  EXPECT_TRUE(windows.pending.empty());
}

TEST_F(WindowsTest, EveryPipelineStageMustBeCovered) {
  const WindowLimits limits = {.num_reporters = 4,
                               .pipeline_parallel_size = 2,
                               .report_every = 10,
                               .min_coverage = 0.5,
                               .max_pending = 2,
                               .max_complete = 3};
  Windows windows;
  EXPECT_FALSE(Add(windows, 2, 0, 9, limits).completed);
  EXPECT_FALSE(Add(windows, 3, 0, 9, limits).completed) << "the first pipeline stage is missing";
  EXPECT_TRUE(Add(windows, 1, 0, 9, limits).completed);
  EXPECT_EQ(windows.complete.back().coverage, 0.75);
}

TEST_F(WindowsTest, OfRanksThatSeeTheSameTokensOneReports) {
  WindowLimits limits = kThreeRanks;
  limits.ranks_per_reporter = 2;  // ranks 0, 2 and 4
  Windows windows;
  EXPECT_FALSE(Add(windows, 0, 0, 9, limits).completed);
  EXPECT_FALSE(Add(windows, 4, 0, 9, limits).completed);
  EXPECT_TRUE(Add(windows, 2, 0, 9, limits).completed);
  EXPECT_EQ(windows.complete.back().load->counts()(0, 0), 300);
  Add(windows, 4, 10, 19, limits);
  std::string given_up;
  for (const int64_t first : {20, 30}) {
    for (const Note& note : Add(windows, 0, first, first + 9, limits).notes)
      given_up += note.reason;
  }
  EXPECT_EQ(given_up, "steps 10..19 are given up: no report of ranks 0, 2");
}

TEST_F(WindowsTest, CoverageIsNotRoundedUpByTheProduct) {
  // 0.07 * 100 is a little above 7 as a double; 7 reporters are enough.
  const WindowLimits limits = {.num_reporters = 100,
                               .report_every = 10,
                               .min_coverage = 0.07,
                               .max_pending = 2,
                               .max_complete = 3};
  Windows windows;
  for (int32_t rank = 0; rank < 6; ++rank) EXPECT_FALSE(Add(windows, rank, 0, 9, limits).completed);
  EXPECT_TRUE(Add(windows, 6, 0, 9, limits).completed);
}

TEST_F(WindowsTest, AnEvictedWindowIsNotBegunAgainByARankThatComesBack) {
  Add(windows_, 0, 0, 9);
  Add(windows_, 0, 10, 19);
  EXPECT_EQ(Add(windows_, 0, 20, 29).notes.size(), 1u);  // 0..9 is evicted
  EXPECT_TRUE(Add(windows_, 1, 0, 9).notes.empty());
  EXPECT_TRUE(Add(windows_, 2, 0, 9).notes.empty());
  EXPECT_EQ(windows_.pending.size(), 2u);
  EXPECT_EQ(windows_.pending.front().first_step, 10);
}

TEST_F(WindowsTest, ASecondReportOfARankIsIgnored) {
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Add(windows_, 0, 0, 9).completed);
  EXPECT_EQ(windows_.pending.front().sum(0, 0), 100);
}

TEST_F(WindowsTest, AShortReportIsNotAddedAndNotedOncePerWindow) {
  const ReportOutcome first = Add(windows_, 0, 4, 9);
  ASSERT_EQ(first.notes.size(), 1u);
  EXPECT_EQ(first.notes[0].name, "report_short");
  EXPECT_EQ(first.notes[0].reason,
            "rank 0 reported steps 4..9; only whole windows of 10 steps are added");
  EXPECT_TRUE(Add(windows_, 1, 5, 9).notes.empty());
  EXPECT_TRUE(windows_.pending.empty());
  EXPECT_EQ(Add(windows_, 1, 15, 19).notes.size(), 1u);
}

TEST_F(WindowsTest, WindowsMergedByTheRanksCountAsOne) {
  Complete(windows_, 0, 29);
  ASSERT_EQ(windows_.complete.size(), 1u);
  EXPECT_EQ(windows_.complete[0].first_step, 0);
  EXPECT_EQ(windows_.complete[0].last_step, 29);
}

TEST_F(WindowsTest, TheOldestPendingWindowIsGivenUpAndTheMissingRanksNamed) {
  Add(windows_, 0, 0, 9);
  Add(windows_, 0, 10, 19);
  const ReportOutcome outcome = Add(windows_, 0, 20, 29);
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_EQ(outcome.notes[0].name, "window_incomplete");
  EXPECT_EQ(outcome.notes[0].reason, "steps 0..9 are given up: no report of ranks 1, 2");
  EXPECT_EQ(windows_.pending.size(), 2u);
}

TEST_F(WindowsTest, TheWindowThatFewestRanksReportedIsGivenUpAndOlderOnesStillComplete) {
  for (const int32_t rank : {0, 1}) Add(windows_, rank, 0, 9);
  Add(windows_, 0, 10, 19);
  const ReportOutcome outcome = Add(windows_, 0, 20, 29);
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_EQ(outcome.notes[0].reason, "steps 10..19 are given up: no report of ranks 1, 2");
  EXPECT_TRUE(Add(windows_, 2, 0, 9).completed);
}

TEST_F(WindowsTest, ARowOfIncompleteWindowsIsNotedOnceAndCountedWithTheNextCompleteOne) {
  int32_t given_up = 0;
  size_t notes = 0;
  for (int64_t step = 0; step < 1000; step += 10) {
    const ReportOutcome outcome = Add(windows_, 0, step, step + 9);
    given_up += outcome.num_given_up;
    notes += outcome.notes.size();
  }
  EXPECT_EQ(given_up, 98);  // two stay pending
  EXPECT_EQ(notes, 1u);
  Add(windows_, 0, 1000, 1009);
  Add(windows_, 1, 1000, 1009);
  const ReportOutcome complete = Add(windows_, 2, 1000, 1009);
  EXPECT_EQ(complete.num_given_up, 1);
  ASSERT_EQ(complete.notes.size(), 1u);
  EXPECT_EQ(complete.notes[0].name, "window_complete_again");
  EXPECT_EQ(complete.notes[0].reason,
            "steps 1000..1009 are complete, after 100 windows in a row were given up");
  for (const int64_t step : {1010, 1020, 1030}) Add(windows_, 0, step, step + 9);
  EXPECT_EQ(Add(windows_, 0, 1040, 1049).num_given_up, 1);
  EXPECT_EQ(windows_.given_up_in_a_row, 2);
}

TEST_F(WindowsTest, ACompleteWindowGivesUpThePendingOnesBeforeIt) {
  Add(windows_, 0, 0, 9);
  Add(windows_, 0, 10, 19);
  Add(windows_, 1, 10, 19);
  const ReportOutcome outcome = Add(windows_, 2, 10, 19);
  EXPECT_TRUE(outcome.completed);
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_EQ(outcome.notes[0].name, "window_incomplete");
  EXPECT_TRUE(windows_.pending.empty());
}

TEST_F(WindowsTest, AnOverflowingWindowIsDroppedOnceAndTheNextOneIsFine) {
  wire::LoadReport huge = TestReport(0, 9);
  huge.counts(0, 0) = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(AddReport(windows_, huge, 0, kThreeRanks).notes.empty());
  const ReportOutcome second = AddReport(windows_, huge, 1, kThreeRanks);
  ASSERT_EQ(second.notes.size(), 1u);
  EXPECT_EQ(second.notes[0].name, "window_dropped");
  EXPECT_FALSE(Add(windows_, 2, 0, 9).completed);
  Complete(windows_, 10, 19);
  EXPECT_EQ(windows_.complete.size(), 1u);
}

TEST_F(WindowsTest, ALayerWhoseSumOverflowsIsDroppedToo) {
  wire::LoadReport huge = TestReport(0, 9);
  huge.counts.row(0) = std::numeric_limits<int64_t>::max() / 4;
  AddReport(windows_, huge, 0, kThreeRanks);
  Add(windows_, 1, 0, 9);
  const ReportOutcome last = Add(windows_, 2, 0, 9);
  EXPECT_FALSE(last.completed);
  ASSERT_EQ(last.notes.size(), 1u);
  EXPECT_EQ(last.notes[0].name, "window_dropped");
}

TEST_F(WindowsTest, CompleteWindowsAreBounded) {
  for (int64_t first = 0; first < 100; first += 10) Complete(windows_, first, first + 9);
  EXPECT_EQ(windows_.complete.size(), 3u);
  EXPECT_EQ(windows_.complete.front().first_step, 70);
}

TEST_F(WindowsTest, TheEstimateTakesTheNewestWindowsSinceTheLastDecision) {
  for (int64_t first = 0; first < 30; first += 10) Complete(windows_, first, first + 9);
  const Window two = SumSince(windows_, -1, 2).value();
  EXPECT_EQ(two.first_step, 10);
  EXPECT_EQ(two.last_step, 29);
  EXPECT_EQ(two.load->counts()(0, 0), 600);
  EXPECT_EQ(SumSince(windows_, 19, 2).value().first_step, 20);
  EXPECT_EQ(SumSince(windows_, 29, 2).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(WindowsTest, AnEstimateThatOverflowsIsRefused) {
  WindowLimits limits = kThreeRanks;
  limits.num_reporters = 1;
  for (int64_t first = 0; first < 20; first += 10) {
    wire::LoadReport huge = TestReport(first, first + 9);
    huge.counts(0, 0) = std::numeric_limits<int64_t>::max() - 1000;
    EXPECT_TRUE(AddReport(windows_, huge, 0, limits).completed);
  }
  EXPECT_EQ(SumSince(windows_, -1, 2).status().code(), absl::StatusCode::kOutOfRange);
}

wire::LoadReport ReportWithParts() {
  wire::LoadReport report = TestReport(0, 9);
  report.version = 7;
  report.earlier = {{.last_step = 3, .version = 4, .counts = LoadMatrix::Constant(4, 6, 4)},
                    {.last_step = 5, .version = 5, .counts = LoadMatrix::Constant(4, 6, 6)}};
  return report;
}

TEST_F(WindowsTest, PartsAreSummedOverRanksAndKeptWithTheWindow) {
  for (const int64_t version : {4, 5, 7}) {
    windows_.placements.Add(version, std::make_shared<const Placement>(Exchanged({})));
  }
  for (int32_t rank = 0; rank < 3; ++rank) {
    AddReport(windows_, ReportWithParts(), rank, kThreeRanks);
  }
  ASSERT_TRUE(windows_.measured.has_value());
  EXPECT_EQ(windows_.measured->versions, (std::vector<int64_t>{4, 5, 7}));
  EXPECT_NEAR(windows_.measured->balancedness, 0.4, 1e-12) << "one placement under three numbers";
  EXPECT_EQ(windows_.placements.Find(5), nullptr) << "no later window tells of it";
}

// 4 x 6 cells of 8 bytes.
constexpr int64_t kLoadBytes = 192;

int64_t BytesOfOnePending() {
  Windows windows;
  Add(windows, 0, 0, 9);
  return BytesOf(windows);
}

TEST_F(WindowsTest, MemoryOfAWindowGrowsWithTheRanksThatReportedAndIsCounted) {
  constexpr int64_t kNumWindows = 100;
  WindowLimits limits = kThreeRanks;
  limits.num_reporters = 16384;
  limits.patient_since = absl::UnixEpoch();
  Windows windows;
  for (int64_t step = 0; step < 10 * kNumWindows; step += 10) {
    wire::LoadReport report = TestReport(step, step + 9);
    report.step_seconds = 0.5;
    AddReport(windows, report, 16383, limits);
  }
  const int64_t flags = limits.num_reporters / 8;
  const int64_t least = flags + kLoadBytes + static_cast<int64_t>(sizeof(PendingWindow));
  EXPECT_GE(BytesOf(windows), kNumWindows * least);
  EXPECT_LT(BytesOf(windows), kNumWindows * (least + 64)) << "no place for ranks without a report";
}

TEST_F(WindowsTest, ACompleteWindowHasTheStepTimesByReporterAndCountsThem) {
  for (const int32_t rank : {2, 0, 1}) {
    wire::LoadReport report = TestReport(0, 9);
    report.step_seconds = rank == 0 ? 0 : 0.5 * rank;
    AddReport(windows_, report, rank, kThreeRanks);
  }
  ASSERT_EQ(windows_.complete.size(), 1u);
  EXPECT_EQ(windows_.complete[0].step_seconds, (std::vector<double>{0, 0.5, 1}));
  EXPECT_GE(BytesOf(windows_),
            kLoadBytes + static_cast<int64_t>(sizeof(Window) + 3 * sizeof(double)));
}

TEST_F(WindowsTest, TheJobThatHoldsMostGivesItsOldestWindowFirst) {
  WindowLimits limits = kThreeRanks;
  limits.max_complete = 64;
  Windows large;
  Windows small;
  for (int64_t step = 0; step < 60; step += 10) {
    for (int32_t rank = 0; rank < 3; ++rank) Add(large, rank, step, step + 9, limits);
  }
  Complete(small, 0, 9);
  Complete(small, 10, 19);
  Complete(small, 20, 29);
  EXPECT_EQ(BoundBytes({&large, &small}, BytesOf(large)), 0);
  EXPECT_EQ(large.complete.size(), 3u);
  EXPECT_EQ(large.complete.front().first_step, 30);
  EXPECT_EQ(small.complete.size(), 3u);
  EXPECT_EQ(BoundBytes({&large, &small}, 0), 0);
  EXPECT_EQ(large.complete.size(), 2u) << "two windows are kept, however little there is room";
  EXPECT_EQ(small.complete.size(), 2u);
}

TEST_F(WindowsTest, PendingWindowsAreGivenUpWhenNothingElseIsLeft) {
  Add(windows_, 0, 0, 9);
  Add(windows_, 0, 10, 19);
  EXPECT_EQ(BoundBytes({&windows_}, BytesOf(windows_) / 2), 1);
  ASSERT_EQ(windows_.pending.size(), 1u);
  EXPECT_EQ(windows_.pending.front().first_step, 10);
  Add(windows_, 1, 0, 9);
  EXPECT_EQ(windows_.pending.size(), 1u) << "it is not begun again";
}

// The daemon reads all reports of one rank before those of the next, as after a standstill.
TEST_F(WindowsTest, WindowsThatBeganLatelyWaitForTheirRanksWhateverTheirNumber) {
  constexpr int64_t kNumWindows = 200;
  WindowLimits limits = kThreeRanks;
  limits.max_complete = kNumWindows;
  limits.patient_since = absl::UnixEpoch();
  limits.now = absl::UnixEpoch();
  Windows windows;
  for (int32_t rank = 0; rank < 3; ++rank) {
    for (int64_t step = 0; step < 10 * kNumWindows; step += 10) {
      EXPECT_EQ(Add(windows, rank, step, step + 9, limits).num_given_up, 0);
    }
  }
  EXPECT_EQ(windows.complete.size(), static_cast<size_t>(kNumWindows));
  EXPECT_TRUE(windows.pending.empty());
}

TEST_F(WindowsTest, OfWindowsThatBeganLongAgoAFewWait) {
  WindowLimits limits = kThreeRanks;
  limits.patient_since = absl::UnixEpoch();
  Windows windows;
  for (int64_t step = 0; step < 100; step += 10) Add(windows, 0, step, step + 9, limits);
  EXPECT_EQ(windows.pending.size(), 10u);
  limits.patient_since = absl::UnixEpoch() + absl::Seconds(1);
  limits.now = absl::UnixEpoch() + absl::Seconds(1);
  EXPECT_EQ(Add(windows, 0, 100, 109, limits).num_given_up, 8);
  ASSERT_EQ(windows.pending.size(), 3u);
  EXPECT_EQ(windows.pending.front().first_step, 80);
}

TEST_F(WindowsTest, ARankThatRunsAheadPushesItsOwnWindowsOutOfTheBudget) {
  const int64_t budget = 8 * BytesOfOnePending();
  WindowLimits limits = kThreeRanks;
  limits.patient_since = absl::UnixEpoch();
  Windows windows;
  int64_t ahead = 0;
  for (int64_t step = 0; step < 200; step += 10) {
    for (int i = 0; i < 20; ++i, ahead += 10) {
      Add(windows, 0, ahead, ahead + 9, limits);
      BoundBytes({&windows}, budget, limits.patient_since);
      EXPECT_LE(BytesOf(windows), budget);
    }
    if (step > 0) Add(windows, 0, step, step + 9, limits);
    Add(windows, 1, step, step + 9, limits);
    BoundBytes({&windows}, budget, limits.patient_since);
    EXPECT_TRUE(Add(windows, 2, step, step + 9, limits).completed) << step;
  }
}

TEST_F(WindowsTest, LoadsOfAJobWhoseRanksAreGoneAreDroppedAndTheFiguresStay) {
  AskedJob job;
  job.Report(10, 19);
  EXPECT_GT(job.daemon.core().window_bytes(), 0);
  job.DisconnectAll();
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_GT(job.daemon.core().window_bytes(), 0) << "they may come back";
  job.daemon.Advance(absl::Seconds(11));
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_EQ(job.daemon.core().window_bytes(), 0);
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 19);
  EXPECT_EQ(job.daemon.View().coverage(), 1);
  EXPECT_GT(job.daemon.View().balancedness(), 0);
  job.ConnectAll();
  job.Report(10, 19);
  EXPECT_EQ(job.daemon.core().window_bytes(), 0) << "reports of those steps are old";
  job.Report(20, 29);
  EXPECT_GT(job.daemon.core().window_bytes(), 0);
}

TEST_F(WindowsTest, TheDaemonHoldsNoMoreBytesThanItsLimit) {
  Config config = TestConfig();
  config.max_window_bytes = 10 * BytesOfOnePending();
  ConnectedJob job(config);
  for (int64_t step = 0; step < 600; step += 10) {
    job.Report(step, step + 9);
    EXPECT_LE(job.daemon.core().window_bytes(), config.max_window_bytes);
  }
}

TEST(SplitTest, EveryEpGroupCountsOnceAndAllTogether) {
  const RankGrid grid = RankGrid::Make({.world_size = 6, .num_gpus = 3}).value();
  const WindowLimits limits = {.num_reporters = 6,
                               .report_every = 10,
                               .min_coverage = 0.5,
                               .max_pending = 2,
                               .max_complete = 3,
                               .grid = &grid};
  Windows windows;
  AddReport(windows, TestSplitReport(720, 300), 4, limits);
  AddReport(windows, TestSplitReport(720, 300), 3, limits);  // rank of the same EP group
  ASSERT_TRUE(AddReport(windows, TestSplitReport(800, 400), 1, limits).completed);
  const std::shared_ptr<const SplitTokens>& split = windows.complete.back().split;
  ASSERT_NE(split, nullptr) << "more tokens than the three ranks' own, and none is missing";
  EXPECT_EQ(split->tokens, std::vector<int64_t>(4, 1520));
  EXPECT_EQ(split->peaks, std::vector<int64_t>(4, 700));
  EXPECT_EQ(split->peaks_static, std::vector<int64_t>(4, 720));
  EXPECT_EQ(split->peaks_without_eplb, std::vector<int64_t>(4, 740));
}

TEST(SplitTest, PeaksOfOtherLayoutsAreUnknownWhereOneRankDoesNotReportThem) {
  wire::LoadReport older = TestSplitReport(720, 300);
  older.split_peaks_static.clear();
  older.split_peaks_without_eplb.clear();
  for (const int32_t old_rank : {0, 2}) {
    Windows windows;
    for (int32_t rank = 0; rank < 3; ++rank) {
      const wire::LoadReport report = rank == old_rank ? older : TestSplitReport(720, 300);
      EXPECT_TRUE(AddReport(windows, report, rank, kThreeRanks).notes.empty());
    }
    const std::shared_ptr<const SplitTokens>& split = windows.complete.back().split;
    EXPECT_EQ(split->peaks, std::vector<int64_t>(4, 300));
    EXPECT_TRUE(split->peaks_static.empty());
    EXPECT_TRUE(split->peaks_without_eplb.empty());
  }
}

TEST(SplitTest, RanksOfAnEpGroupThatDoNotAgreeAreNotedOnceAndNothingIsMeasuredByThem) {
  Windows windows;
  AddReport(windows, TestSplitReport(720, 300), 0, kThreeRanks);
  const ReportOutcome differing = AddReport(windows, TestSplitReport(720, 310), 1, kThreeRanks);
  ASSERT_EQ(differing.notes.size(), 1u);
  EXPECT_EQ(differing.notes[0].name, "splits_differ");
  EXPECT_EQ(differing.notes[0].reason,
            "steps 0..9: rank 1 does not report the splits that another rank of its EP group "
            "reports; the balancedness of such windows is that of equal shares");
  EXPECT_TRUE(AddReport(windows, TestSplitReport(720, 320), 2, kThreeRanks).notes.empty());
  ASSERT_EQ(windows.complete.size(), 1u);
  EXPECT_EQ(windows.complete[0].split, nullptr);
}

}  // namespace
}  // namespace eplb::core
