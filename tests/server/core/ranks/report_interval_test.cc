#include "server/core/ranks/report_interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "client/session/load_windows.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

Config ReportIntervalConfig(int32_t report_every) {
  Config config = TestConfig();
  config.report_every_steps = report_every;
  config.min_coverage = 1;
  config.settings.freeze_steps.first = 0;
  config.settings.freeze_steps.last = int64_t{1} << 60;
  return config;
}

// The real load windows of three ranks in step, and the daemon's core. Rank r hears of a Pace
// `lag[r]` steps after it was sent.
class ReportIntervalJob {
 public:
  explicit ReportIntervalJob(Config config) : job(std::move(config)) {
    job.ConnectAll();
    for (auto& sent : sent_) sent.clear();
  }

  // Every rank runs steps up to and including `last`; the daemon ticks after each.
  void RunUntil(int64_t last) {
    for (; step_ <= last; ++step_) {
      for (size_t r = 0; r < 3; ++r) Hear(r);
      for (size_t r = 0; r < 3; ++r) {
        const auto window = windows_[r].EndStep(step_);
        if (!window) continue;
        wire::LoadReport report = TestReport(window->first_step, window->last_step);
        job.daemon.Say(job.ranks[r].session, report);
        ranges_[r].emplace_back(window->first_step, window->last_step);
      }
      Tick tick{.dropped_reports = dropped};
      for (const int32_t rank : limited) tick.limited.push_back({job.ranks[rank].session, 5});
      job.daemon.Handle(tick);
    }
  }

  const std::vector<std::pair<int64_t, int64_t>>& ranges(size_t rank) const {
    return ranges_[rank];
  }
  int32_t report_every(size_t rank) const { return windows_[rank].report_every(); }

  TestJob job;
  std::array<int64_t, 3> lag = {0, 0, 0};
  int64_t dropped = 0;
  std::vector<int32_t> limited;  // ranks that report above their streams' limit

 private:
  void Hear(size_t rank) {
    for (const auto& pace : Only<wire::SetReportInterval>(job.SentTo(static_cast<int32_t>(rank)))) {
      sent_[rank].emplace_back(step_ + lag[rank], pace);
    }
    while (!sent_[rank].empty() && sent_[rank].front().first <= step_) {
      windows_[rank].SetReportInterval(sent_[rank].front().second);
      sent_[rank].erase(sent_[rank].begin());
    }
  }

  int64_t step_ = 0;
  std::array<LoadWindows, 3> windows_ = {LoadWindows(4, 6, 10, 0), LoadWindows(4, 6, 10, 0),
                                         LoadWindows(4, 6, 10, 0)};
  std::array<std::vector<std::pair<int64_t, wire::SetReportInterval>>, 3> sent_;
  std::array<std::vector<std::pair<int64_t, int64_t>>, 3> ranges_;
};

// Cases: windows as configured, one rank above its stream's limit, ranks that choose.
TEST(ReportIntervalTest, NothingIsAskedOfRanksWithoutACause) {
  for (const auto& [configured, limited] :
       {std::pair<int32_t, std::vector<int32_t>>{10, {}}, {10, {1}}, {0, {}}}) {
    ReportIntervalJob paced(ReportIntervalConfig(configured));
    paced.limited = limited;
    paced.RunUntil(199);
    EXPECT_EQ(paced.job.daemon.CountEvents("report_interval"), 0) << configured;
    EXPECT_EQ(paced.report_every(0), 10) << configured;
  }
}

TEST(ReportIntervalTest, AJobWhoseReportersAreMostlyAboveTheLimitGetsLongerWindows) {
  ReportIntervalJob paced(ReportIntervalConfig(10));
  paced.limited = {0, 1};
  paced.RunUntil(199);
  EXPECT_EQ(paced.report_every(0), 20);
  EXPECT_THAT(paced.job.daemon.LastReason("report_interval"),
              ::testing::HasSubstr("the job's ranks report above limits.messages_per_second, so "
                                   "windows are 2 times as long as configured"));
}

TEST(ReportIntervalTest, ADaemonThatIsBehindGetsLongerWindows) {
  ReportIntervalJob paced(ReportIntervalConfig(10));
  paced.job.daemon.Handle(Tick{.behind = true});
  paced.RunUntil(199);
  EXPECT_EQ(paced.report_every(0), 20);
  EXPECT_THAT(paced.job.daemon.LastReason("report_interval"),
              ::testing::HasSubstr("the daemon is behind with the reports, so "));
}

TEST(ReportIntervalTest,
     RanksThatGetTheReportIntervalAtDifferentMomentsChangeTogetherAndEveryWindowIsComplete) {
  ReportIntervalJob paced(ReportIntervalConfig(20));
  paced.lag = {0, 7, 19};
  paced.RunUntil(299);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(paced.report_every(r), 20) << r;
    EXPECT_EQ(paced.ranges(r), paced.ranges(0)) << r;
  }
  EXPECT_EQ(paced.ranges(0).front(), std::pair(int64_t{0}, int64_t{9}));
  EXPECT_EQ(paced.ranges(0).back(), std::pair(int64_t{280}, int64_t{299}));
  EXPECT_EQ(paced.job.daemon.CountEvents("window_incomplete"), 0);
  EXPECT_EQ(paced.job.daemon.CountEvents("report_short"), 0);
  EXPECT_EQ(paced.job.daemon.View().last_window_first_step(), 280);
  EXPECT_EQ(paced.job.daemon.CountEvents("report_interval"), 1);
  EXPECT_THAT(
      paced.job.daemon.LastReason("report_interval"),
      ::testing::MatchesRegex("the ranks are asked for windows of 20 steps from step [0-9]+ on, "
                              "until now 10"));
}

TEST(ReportIntervalTest, AShorterLengthIsReachedToo) {
  ReportIntervalJob paced(ReportIntervalConfig(4));
  paced.lag = {3, 0, 11};
  paced.RunUntil(119);
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(paced.ranges(r), paced.ranges(0)) << r;
  EXPECT_EQ(paced.report_every(0), 4);
  EXPECT_EQ(paced.job.daemon.CountEvents("window_incomplete"), 0);
}

TEST(ReportIntervalTest, ARankThatHearsOfItTooLateIsAlignedAgainAndOnlyQualityIsLost) {
  ReportIntervalJob paced(ReportIntervalConfig(20));
  paced.lag = {0, 0, 75};
  paced.RunUntil(399);
  EXPECT_EQ(paced.report_every(2), 20);
  EXPECT_EQ(paced.ranges(2).back(), paced.ranges(0).back());
  EXPECT_GT(paced.job.daemon.CountEvents("window_incomplete"), 0);
  EXPECT_EQ(paced.job.daemon.View().last_window_last_step(), 399);
}

TEST(ReportIntervalTest, AChangeThatWasLostIsAnnouncedAgain) {
  ReportIntervalJob paced(ReportIntervalConfig(20));
  paced.job.daemon.Handle(Tick{});
  for (int32_t rank = 0; rank < 3; ++rank) (void)paced.job.SentTo(rank);  // lost
  paced.RunUntil(399);
  EXPECT_EQ(paced.report_every(0), 20);
  EXPECT_EQ(paced.job.daemon.View().last_window_last_step(), 399);
  EXPECT_EQ(paced.job.daemon.CountEvents("report_interval"), 1);  // said once
}

TEST(ReportIntervalTest, ARankThatComesBackMeanwhileIsTold) {
  ReportIntervalJob paced(ReportIntervalConfig(5));
  paced.RunUntil(5);
  paced.job.Disconnect(1);
  paced.job.Connect(1);
  const auto told = Only<wire::SetReportInterval>(paced.job.SentTo(1));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].report_every, 5);
  EXPECT_EQ(told[0].from_step % 10, 0);
}

TEST(ReportIntervalTest, DropsMakeWindowsLongerUpToALimitAndCalmMakesThemShortAgain) {
  ReportIntervalJob paced(ReportIntervalConfig(10));
  int64_t last = 0;
  for (int i = 0; i < 8; ++i) {
    paced.dropped += 5;
    paced.job.daemon.Advance(kRaiseInterval);
    paced.RunUntil(last += 2000);
  }
  EXPECT_EQ(paced.report_every(0), 10 * kMaxReportIntervalFactor);
  EXPECT_THAT(paced.job.daemon.LastReason("report_interval"), HasSubstr("16 times as long"));
  for (int i = 0; i < 5; ++i) {
    paced.job.daemon.Advance(kCalmInterval);
    paced.RunUntil(last += 2000);
  }
  EXPECT_EQ(paced.report_every(0), 10);
  EXPECT_EQ(paced.job.daemon.CountEvents("window_incomplete"), 0);
}

TEST(ReportIntervalTest, AJobThatVotesOtherwiseThanConfiguredIsToldOnce) {
  Config config = TestConfig();
  config.vote_every_steps = 8;
  AskedJob job(config);
  EXPECT_EQ(job.daemon.CountEvents("vote_every_differs"), 1);
  EXPECT_THAT(job.daemon.LastReason("vote_every_differs"), HasSubstr("votes every 2 steps"));
}

TEST(ReduceTest, OneReportOfRankZeroCompletesAWindowOfAJobThatAddsItsCountsUp) {
  TestJob job;
  for (FakeRank& rank : job.ranks) rank.identity.reduce = wire::Reduce::kRoot;
  job.ConnectAll();
  job.daemon.Say(job.ranks[0].session, TestReport(0, 9));
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 9);
  job.daemon.Say(job.ranks[1].session, TestReport(0, 9));
  const auto closed = job.ClosedWith(1);
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(*closed));
}

}  // namespace
}  // namespace eplb::core
