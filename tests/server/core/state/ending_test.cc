#include "server/core/state/ending.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

constexpr char kVictim[] =
    "rank 2 was lost at 00:00:00 UTC, after step 9 (its stream ended without a close)";

// Three ranks that trained ten steps, and how they end.
class EndingTest : public ::testing::Test {
 protected:
  EndingTest() {
    job_.ConnectAll();
    job_.Report(0, 9);
  }

  void Fail(int32_t rank, const std::string& why = "gloo: connection closed by peer") {
    job_.daemon.Say(job_.ranks[rank].session, wire::Goodbye{why, {}, true});
  }
  void Wait(int64_t milliseconds) { job_.daemon.Advance(absl::Milliseconds(milliseconds)); }
  v1::RankState State(int32_t rank) const { return job_.daemon.View().ranks(rank).state(); }
  std::string Reason() const { return job_.daemon.View().end_reason(); }

  TestJob job_;
};

TEST_F(EndingTest, AStreamThatWasCutBeforeTheFirstReportIsTheCause) {
  job_.Disconnect(2);
  EXPECT_EQ(State(2), v1::RANK_STATE_AWAY);
  Wait(20);
  Fail(1);
  EXPECT_EQ(Reason(), absl::StrCat(kVictim,
                                   "; rank 1 failed 0.02 s later: gloo: connection closed "
                                   "by peer"));
  EXPECT_EQ(job_.daemon.LastReason("run_ended"), absl::StrCat("run run-1 ended: ", Reason()));
  Fail(0);
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(State(0), v1::RANK_STATE_FAILED);
  EXPECT_EQ(State(1), v1::RANK_STATE_FAILED);
  EXPECT_EQ(State(2), v1::RANK_STATE_LOST);
  EXPECT_EQ(job_.daemon.CountEvents("run_ended"), 1);
}

TEST_F(EndingTest, ACutThatIsReadJustAfterTheFirstReportIsTheCauseToo) {
  Fail(1);
  EXPECT_EQ(Reason(), "rank 1 failed after step 9: gloo: connection closed by peer");
  Wait(30);
  job_.Disconnect(2);
  EXPECT_EQ(Reason(),
            "rank 2 was lost at 00:00:00 UTC, after step 9 (its stream ended without a "
            "close); rank 1 failed 0.03 s before that was seen: gloo: connection closed "
            "by peer");
  EXPECT_EQ(job_.daemon.CountEvents("run_ended"), 1);
  EXPECT_EQ(job_.daemon.CountEvents("end_amended"), 1);
  Wait(200);
  EXPECT_EQ(job_.daemon.stored().at(kJob).end->reason(), Reason());
}

TEST_F(EndingTest, WhomALauncherKillsAfterTheFirstReportIsNotBlamed) {
  Fail(1, "out of memory");
  Wait(150);
  job_.Disconnect(0);
  job_.Disconnect(2);
  EXPECT_EQ(Reason(), "rank 1 failed after step 9: out of memory");
  EXPECT_EQ(State(0), v1::RANK_STATE_LOST);
  EXPECT_EQ(job_.daemon.CountEvents("end_amended"), 0);
}

TEST_F(EndingTest, WhomALauncherKillsAfterTheVictimIsNamedAfterIt) {
  job_.Disconnect(2);
  Wait(120);
  job_.Disconnect(0);
  Wait(80);
  job_.Disconnect(1);
  job_.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_LOST);
  EXPECT_EQ(job_.daemon.View().waiting_for(), "its ranks to reconnect, or a new run");
  EXPECT_EQ(Reason(), absl::StrCat(kVictim,
                                   " and did not reconnect within 10s; the other 2 ranks "
                                   "were lost within 0.20 s after it"));
}

TEST_F(EndingTest, AReportThatComesAfterTheGraceLeavesTheCause) {
  job_.Disconnect(2);
  job_.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_LOST);
  Fail(1, "the collective timed out");
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Reason(),
            absl::StrCat(kVictim, "; rank 1 failed 11.00 s later: the collective timed out"));
}

TEST_F(EndingTest, AVoteWithoutAnAnswerNamesTheLostRankFirst) {
  job_.Disconnect(2);
  job_.daemon.Say(job_.ranks[0].session, wire::Goodbye{"vote timed out", {2}, true});
  EXPECT_EQ(Reason(), absl::StrCat(kVictim,
                                   "; rank 0 reported 0.00 s later that rank 2 did not "
                                   "answer the vote: vote timed out"));
}

TEST_F(EndingTest, AProcessThatOnlyLostItsStreamIsNotBlamedOnceItIsHeardAgain) {
  job_.Disconnect(2);
  Fail(1, "out of memory");
  EXPECT_EQ(Reason(), absl::StrCat(kVictim, "; rank 1 failed 0.00 s later: out of memory"));
  job_.Connect(2);  // refused: the run has ended
  EXPECT_EQ(Reason(), "rank 1 failed after step 9: out of memory");
  EXPECT_EQ(State(2), v1::RANK_STATE_AWAY);
}

TEST_F(EndingTest, ARankThatCameBackIsNotBlamed) {
  job_.Disconnect(2);
  job_.Connect(2);
  Fail(1, "out of memory");
  EXPECT_EQ(Reason(), "rank 1 failed after step 9: out of memory");
}

TEST_F(EndingTest, ARankThatFinishedIsNotBlamed) {
  job_.daemon.Say(job_.ranks[2].session, wire::Goodbye{"", {}, false});
  EXPECT_EQ(State(2), v1::RANK_STATE_FINISHED);
  Fail(1, "out of memory");
  EXPECT_EQ(Reason(), "rank 1 failed after step 9: out of memory");
  EXPECT_EQ(State(2), v1::RANK_STATE_FINISHED);
  EXPECT_EQ(State(0), v1::RANK_STATE_CONNECTED);
}

TEST_F(EndingTest, ARankWhoseStreamTheDaemonEndedWasNotCut) {
  job_.daemon.Say(job_.ranks[2].session, wire::Prepared{-1, {}});
  job_.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(Reason(), "rank 2, whose streams the daemon ended, did not reconnect within 10s");
}

TEST_F(EndingTest, WhatARankSaysIsBounded) {
  Fail(1, std::string(100000, 'x'));
  EXPECT_LT(Reason().size(), 1000u);
}

TEST_F(EndingTest, ARestartedDaemonKnowsHowItEndedAndRefusesItsStragglers) {
  job_.Disconnect(2);
  Fail(1);
  const std::string reason = Reason();
  job_.daemon.Restart();
  const v1::JobStatus view = job_.daemon.View();
  EXPECT_EQ(view.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(view.ending(), v1::RUN_ENDING_FAILED);
  EXPECT_EQ(view.end_reason(), reason);
  EXPECT_EQ(view.waiting_for(), "");
  EXPECT_EQ(view.run_id(), "run-1");
  EXPECT_EQ(view.world_size(), 3);
  EXPECT_EQ(view.step(), 9);
  job_.Connect(0);
  const absl::Status refused = *job_.ClosedWith(0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 2 was lost"));
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_FAILED);
}

TEST_F(EndingTest, ARestartedDaemonShowsALostRunAndItsRanksResumeIt) {
  job_.Disconnect(2);
  job_.daemon.Advance(absl::Seconds(11));
  job_.daemon.Restart();
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_LOST);
  job_.ConnectAll();
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_IDLE);
  EXPECT_EQ(job_.daemon.View().end_reason(), "");
  EXPECT_FALSE(job_.daemon.stored().at(kJob).end.has_value());
}

TEST(EndingBeforeReleaseTest, ALostRunWhosePlacementIsNotKnownIsNotStored) {
  TestJob job;
  job.Connect(0);
  job.Connect(1);
  job.Disconnect(1);
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_LOST);
  EXPECT_EQ(job.daemon.View().ranks(2).state(), v1::RANK_STATE_EXPECTED);
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_TRUE(job.daemon.stored().empty());
  job.daemon.Say(job.ranks[0].session, wire::Goodbye{"", {}, true});
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_FAILED);
  job.Connect(1);
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_TRUE(job.daemon.stored().empty());
}

TEST_F(EndingTest, ANewRunOfAJobThatEndedBeforeTheRestartIsReleased) {
  job_.FinishAll();
  job_.daemon.Restart();
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_FINISHED);
  job_.Relaunch("run-2");
  job_.Connect(0);
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(State(1), v1::RANK_STATE_EXPECTED);
  job_.ConnectAll();
  EXPECT_EQ(job_.daemon.View().state(), v1::JOB_STATE_IDLE);
}

}  // namespace
}  // namespace eplb::core
