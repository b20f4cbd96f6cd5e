#include "server/core/state/decision_context.h"

#include <gmock/gmock.h>

#include <cstdint>

#include "absl/strings/str_cat.h"

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

// The other ranks are further: a report far ahead of them would count as none.
void ConnectBehindOthers(TestJob& job) {
  for (const int32_t rank : {1, 2}) job.ranks[rank].identity.step = 1000000;
  job.ConnectAll();
}

// Each is short by a step, of another window.
void ReportShort(TestJob& job, int64_t first_window, int64_t num) {
  for (int64_t window = first_window; window < first_window + num; ++window) {
    job.daemon.Say(job.ranks[0].session, TestReport(10 * window, 10 * window + 8));
  }
}

TEST(DecisionContextTest, ARankFillsTheAuditLogNoFasterThanItsJobsBudget) {
  TestJob job;
  ConnectBehindOthers(job);
  ReportShort(job, 1, 10000);
  EXPECT_LE(job.daemon.CountEvents("report_short"), 64);
  const int64_t recorded = job.daemon.CountEvents("report_short");
  EXPECT_EQ(job.daemon.core().counters().events_left_out, 10000 - recorded);
  job.daemon.Advance(absl::Seconds(10));
  ReportShort(job, 20000, 1);
  EXPECT_EQ(job.daemon.CountEvents("report_short"), recorded + 1);
  EXPECT_THAT(job.daemon.LastReason("report_short"),
              HasSubstr(absl::StrCat(10000 - recorded, " events that ranks caused were left out")));
}

TEST(DecisionContextTest, RanksThatGoAndComeBackFillTheAuditLogNoFasterEither) {
  ConnectedJob job;
  const size_t before = job.daemon.records().size();
  for (int time = 0; time < 200; ++time) {
    for (const FakeRank& rank : job.ranks) job.daemon.Say(rank.session, wire::Moved{9, "other:1"});
    job.ConnectAll();
  }
  EXPECT_GT(job.daemon.CountEvents("stepped_down"), 0);
  EXPECT_LE(job.daemon.records().size() - before, 64u);
}

TEST(DecisionContextTest, ALeapIsNotRecordedAboveTheBudget) {
  TestJob job;
  ConnectBehindOthers(job);
  ReportShort(job, 1, 10000);
  job.daemon.Say(job.ranks[0].session, TestReport(5000000, 5000009));
  EXPECT_EQ(job.daemon.core().counters().reports_ahead, 1);
  EXPECT_EQ(job.daemon.CountEvents("report_ahead"), 0);
}

TEST(DecisionContextTest, AStallIsNotRecordedAboveTheBudget) {
  TestJob job;
  ConnectBehindOthers(job);
  ReportShort(job, 1, 10000);
  const int64_t left_out = job.daemon.core().counters().events_left_out;
  wire::Hello refused = TestHello(0);
  refused.nonce = 7;
  (void)job.daemon.Join(refused);  // and the job is stalled: "refused"
  job.daemon.AdvanceSeconds(7);
  EXPECT_EQ(job.daemon.View().stalled(), "refused");
  EXPECT_EQ(job.daemon.CountEvents("stalled"), 0);
  EXPECT_EQ(job.daemon.core().counters().events_left_out, left_out + 1);
}

TEST(DecisionContextTest, EveryEventTellsTheTermThatTheJobIsLedWith) {
  Config config = TestConfig();
  config.report_every_steps = 5;  // the ranks have longer windows
  TestJob job(config);
  for (FakeRank& rank : job.ranks) rank.identity.highest_term = 5;
  job.ConnectAll();
  wire::Hello refused = TestHello(0);
  refused.nonce = 7;
  (void)job.daemon.Join(refused);
  job.daemon.AdvanceSeconds(7);
  ASSERT_EQ(job.daemon.CountEvents("report_interval"), 1);
  ASSERT_EQ(job.daemon.CountEvents("stalled"), 1);
  for (const auto& [event, term] : job.daemon.records()) {
    if (event.name() != "report_interval" && event.name() != "stalled") continue;
    EXPECT_EQ(term, 6) << event.name();
  }
}

TEST(DecisionContextTest, AnEventThatNoRankCanRepeatIsAlwaysRecorded) {
  TestJob job;
  ConnectBehindOthers(job);
  ReportShort(job, 1, 10000);
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  EXPECT_EQ(job.daemon.CountEvents("pause"), 1);
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  ReportShort(job, 20000, 1);
  job.Report(300000, 300009);
  job.daemon.AnswerSolve(Exchanged({0, 1}));
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 1);
}

}  // namespace
}  // namespace eplb::core
