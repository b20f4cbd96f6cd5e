#include "server/core/turn.h"

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

TEST(TurnTest, ARankFillsTheAuditLogNoFasterThanItsJobsBudget) {
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

TEST(TurnTest, AnEventThatNoRankCanRepeatIsAlwaysRecorded) {
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
