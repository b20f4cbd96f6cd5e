#include "server/core/ranks/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

// Relaunches so that the new run replaces the one that trains.
void TakeOver(TestJob& job, const std::string& name) {
  job.Relaunch(name);
  for (FakeRank& rank : job.ranks) rank.identity.take_over = true;
}

TEST(RunTest, ANewOneReplacesTheOldWhenAllItsRanksSaidHello) {
  ProposedJob job(Exchanged({0, 1}));
  const SessionId old_session = job.ranks[0].session;
  TakeOver(job, "run-2");
  job.Connect(0);
  job.Connect(1);
  EXPECT_EQ(job.daemon.View().run_id(), "run-1");
  EXPECT_EQ(job.daemon.state(), "PREPARING");
  job.Connect(2);
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.ClosedWith(old_session)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.daemon.CountEvents("withdrawn"), 1);
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 0);
}

TEST(RunTest, TakingOverFromRanksThatAreStillConnectedIsTold) {
  ConnectedJob job;
  EXPECT_EQ(job.daemon.View().took_over(), "");
  job.Disconnect(2);
  TakeOver(job, "run-2");
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().took_over(), "run-1");
  EXPECT_EQ(job.daemon.LastReason("taken_over"),
            "run run-2 took over from run-1 while 2 of its 3 ranks were still "
            "connected: a restart, or two jobs of one name");
  job.DisconnectAll();
  job.daemon.Advance(absl::Seconds(11));
  job.Relaunch("run-3");
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().run_id(), "run-3");
  EXPECT_EQ(job.daemon.View().took_over(), "");
  EXPECT_EQ(job.daemon.CountEvents("taken_over"), 1);
}

TEST(RunTest, TheViewTellsHowItEnded) {
  ConnectedJob job;
  EXPECT_EQ(job.daemon.View().ending(), v1::RUN_ENDING_UNSPECIFIED);
  job.Disconnect(2);
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job.daemon.View().ending(), v1::RUN_ENDING_LOST);
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_LOST);
  EXPECT_EQ(job.daemon.View().end_reason(),
            "rank 2 was lost at 00:00:00 UTC, after step 0 (its stream ended without a close) and "
            "did not reconnect within 10s");
  job.Connect(2);
  EXPECT_EQ(job.daemon.View().ending(), v1::RUN_ENDING_UNSPECIFIED);
  EXPECT_EQ(job.daemon.View().end_reason(), "");
  job.Fail(0);
  EXPECT_EQ(job.daemon.View().ending(), v1::RUN_ENDING_FAILED);
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.daemon.View().waiting_for(), "");
  job.Relaunch("run-2");
  job.ConnectAll();
  job.FinishAll();
  EXPECT_EQ(job.daemon.View().ending(), v1::RUN_ENDING_FINISHED);
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(job.daemon.View().waiting_for(), "");
  EXPECT_EQ(job.daemon.View().end_reason(), "all 3 ranks finished");
}

TEST(RunTest, AGatheringOneWithADeadRankIsForgotten) {
  ConnectedJob job;
  job.Relaunch("run-2");
  job.Connect(0);
  job.Connect(1);
  job.Disconnect(1);
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job.ClosedWith(0)->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job.daemon.View().run_id(), "run-1");
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(RunTest, AFailedGoodbyeEndsItNamingTheRanksThatDidNotVote) {
  ProposedJob job(Exchanged({0, 1}));
  job.daemon.Say(job.ranks[0].session, wire::Goodbye{"vote timed out", {2}, true});
  EXPECT_EQ(job.daemon.LastReason("run_ended"),
            "run run-1 ended: rank 2 did not answer the vote after step 9, reported by "
            "rank 0: vote timed out");
  EXPECT_EQ(job.daemon.state(), "FAILED");
  EXPECT_EQ(Only<wire::Cancel>(job.SentTo(1)).size(), 1u);
  EXPECT_EQ(job.ClosedWith(1), std::nullopt);
  EXPECT_EQ(job.daemon.View().waiting_for(), "");
  job.Report(10, 29);
  EXPECT_EQ(job.daemon.num_solves(), 1);
}

TEST(RunTest, AfterAFailureTheNextOneIsCurrentAtOnce) {
  ConnectedJob job;
  job.Fail(0);
  EXPECT_THAT(job.daemon.LastReason("run_ended"), HasSubstr("rank 0 failed after step 0"));
  const SessionId survivor = job.ranks[1].session;
  job.Relaunch("run-2");
  job.Connect(0);
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  EXPECT_EQ(job.daemon.ClosedWith(survivor)->code(), absl::StatusCode::kFailedPrecondition);
}

// The next run has half the layers; its rank 0 began with the static layout as `version`.
void RelaunchInAnotherShape(TestJob& job, int64_t version) {
  job.Relaunch("run-2");
  TopologyOptions shape = TestShape();
  shape.num_layers = 2;
  const Placement fresh = Placement::Static(Topology::Make(shape).value());
  for (FakeRank& rank : job.ranks) rank.identity.shape = shape;
  job.SetRunning(fresh, version);
}

// Versions 1 and 2 were given out, 1 of them was committed; the daemon starts anew.
void CommitOneOfTwo(TestJob& job) {
  job.Propose(Exchanged({0, 1, 2, 3}));
  job.Deliver();
  ASSERT_TRUE(job.VoteAndDeliver(29));
  ASSERT_EQ(job.daemon.View().version(), 1);
  job.Fail(0);
  ASSERT_EQ(*job.daemon.core().NextVersion(kJob), 3);
  job.daemon.Restart();
}

TEST(RunTest, ANewShapeBeginsAboveEveryVersionEverGivenOutAlsoAfterARestart) {
  TestJob job;
  CommitOneOfTwo(job);
  const int64_t fresh = *job.daemon.core().NextVersion(kJob);
  EXPECT_EQ(fresh, 3);
  RelaunchInAnotherShape(job, fresh);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 3);
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 3);
  EXPECT_EQ(job.daemon.stored().at(kJob).next_version, 4);
  EXPECT_EQ(job.daemon.CountEvents("version_reused"), 0);
  EXPECT_EQ(job.daemon.core().NextVersion("x").status().code(), absl::StatusCode::kNotFound);
}

TEST(RunTest, ANewShapeUnderANumberThatWasInUseIsToldOnce) {
  TestJob job;
  CommitOneOfTwo(job);
  RelaunchInAnotherShape(job, 0);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.LastReason("version_reused"),
            "run run-2 runs version 0 with digest " +
                DigestOf(job.ranks[0].placement).Hex().substr(0, 12) + ", the job ran digest " +
                DigestOf(Exchanged({})).Hex().substr(0, 12) +
                " under that number before, which stays in the history; the next version is 3");
  job.Disconnect(1);
  job.Connect(1);
  EXPECT_EQ(job.daemon.CountEvents("version_reused"), 1);
  EXPECT_EQ(job.daemon.stored().at(kJob).next_version, 3);
}

TEST(RunTest, ARankOfAFailedOneIsToldWhyItIsRefused) {
  ConnectedJob job;
  job.Fail(0);
  job.Disconnect(1);
  job.Connect(1);
  const absl::Status status = *job.ClosedWith(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory"));
}

TEST(RunTest, AShortAbsenceIsNothing) {
  ConnectedJob job;
  job.Disconnect(1);
  job.daemon.Advance(absl::Seconds(9));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  job.Connect(1);
  job.daemon.Advance(absl::Seconds(60));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.CountEvents("run_ended"), 0);
}

TEST(RunTest, ALongAbsenceEndsItAndTheSameProcessesResumeIt) {
  PreparedJob job(Exchanged({0, 1}));
  job.Disconnect(1);
  job.Disconnect(2);
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job.daemon.state(), "LOST");
  EXPECT_EQ(job.daemon.LastReason("run_ended"),
            "run run-1 ended: rank 1 was lost at 00:00:00 UTC, after step 9 (its stream "
            "ended without a close) and did not reconnect within 10s; rank 2 was lost within "
            "0.00 s after it");
  EXPECT_THAT(job.daemon.View().waiting_for(), HasSubstr("its ranks to reconnect"));
  job.Connect(1);
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_EQ(job.daemon.CountEvents("run_resumed"), 0);
  job.Connect(2);
  EXPECT_EQ(job.daemon.CountEvents("run_resumed"), 1);
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.CountEvents("run_ended"), 1);
}

TEST(RunTest, OneThatGathersReplacesALostOneOnceAllItsRanksAreThere) {
  ConnectedJob job;
  job.DisconnectAll();
  job.Relaunch("run-2");
  job.Connect(0);
  job.Connect(1);  // rank 2 never comes
  EXPECT_EQ(job.daemon.View().run_id(), "run-1");
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job.daemon.View().run_id(), "run-1");  // it may still come back
  EXPECT_EQ(job.daemon.state(), "LOST");
  ASSERT_TRUE(job.daemon.View().has_candidate());
  EXPECT_EQ(job.daemon.View().candidate().waits(), "rank 2 to register");
  job.daemon.AdvanceSeconds(70);
  EXPECT_EQ(job.daemon.LastReason("stalled").substr(0, 10), "candidate:");
  job.Connect(2);
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(RunTest, OneThatGathersIsCurrentWhenTheOldOneFails) {
  ConnectedJob job;
  const SessionId old = job.ranks[2].session;
  job.Relaunch("run-2");
  job.Connect(0);
  job.daemon.Say(old, wire::Goodbye{"out of memory", {}, true});
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_EQ(job.daemon.View().waiting_for(), "ranks 1, 2 to register");
  EXPECT_EQ(job.daemon.CountEvents("run_ended"), 1);
}

TEST(RunTest, ALostOneWhoseRanksAllFinishHasFinished) {
  ConnectedJob job;
  job.DisconnectAll();
  job.daemon.Advance(absl::Seconds(11));
  ASSERT_EQ(job.daemon.CountEvents("run_ended"), 1);
  for (const int32_t rank : {0, 1, 2}) {  // never all at once
    job.Connect(rank);
    job.daemon.Say(job.ranks[rank].session, wire::Goodbye{"finished", {}, false});
  }
  EXPECT_EQ(job.daemon.LastReason("run_ended"), "run run-1 ended: all 3 ranks finished");
}

TEST(RunTest, OneWhoseRanksAllMovedToAnotherDaemonIsLostAtOnceWithThatReason) {
  ConnectedJob job;
  for (const int32_t rank : {0, 1, 2}) {
    EXPECT_EQ(job.daemon.View().ending(), v1::RUN_ENDING_UNSPECIFIED);
    job.daemon.Say(job.ranks[rank].session, wire::Moved{7, "10.0.0.2:7750"});
    EXPECT_TRUE(job.ClosedWith(rank)->ok());
  }
  EXPECT_EQ(job.daemon.state(), "LOST");
  EXPECT_TRUE(job.daemon.View().led_elsewhere());
  EXPECT_EQ(job.daemon.View().end_reason(),
            "its ranks continue with eplbd at 10.0.0.2:7750, which leads with term 7; this one led "
            "with term 1");
  EXPECT_EQ(job.daemon.CountEvents("stepped_down"), 1);
  EXPECT_EQ(job.daemon.LastReason("stepped_down"),
            "run run-1: its ranks continue with eplbd at 10.0.0.2:7750, which leads with "
            "term 7; this one led with term 1");
  job.daemon.Advance(absl::Minutes(10));
  EXPECT_EQ(job.daemon.CountEvents("stuck"), 0);
  // The other daemon is gone: they come back, and this one leads with a higher term.
  for (FakeRank& rank : job.ranks) rank.identity.highest_term = 7;
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_FALSE(job.daemon.View().led_elsewhere());
  EXPECT_EQ(job.daemon.View().term(), 8);
}

TEST(RunTest, ARankThatMovedAloneAndStaysAwayIsNamedWithWhereItWent) {
  ConnectedJob job;
  job.daemon.Say(job.ranks[1].session, wire::Moved{7, "b:1"});
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(
      job.daemon.View().end_reason(),
      "rank 1 did not reconnect within 10s; its ranks continue with eplbd at b:1, which leads "
      "with term 7; this one led with term 1");
  EXPECT_TRUE(job.daemon.View().led_elsewhere());
}

TEST(RunTest, TheLeaderIsTheDaemonThatRunsThisRun) {
  ConnectedJob job;
  job.Disconnect(2);
  const absl::StatusOr<LeaderView> leader = job.daemon.core().Leader(kJob, "run-1");
  ASSERT_TRUE(leader.ok());
  EXPECT_EQ(leader->term, 1);
  EXPECT_EQ(leader->connected_ranks, 2);
  EXPECT_EQ(leader->world_size, 3);
  EXPECT_EQ(job.daemon.core().Leader(kJob, "run-2").status().code(), absl::StatusCode::kNotFound);
  job.Relaunch("run-2");
  job.Connect(1);
  EXPECT_EQ(job.daemon.core().Leader(kJob, "run-2")->connected_ranks, 1) << "it gathers here";
  EXPECT_EQ(job.daemon.core().Leader("x", "run-1").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace eplb::core
