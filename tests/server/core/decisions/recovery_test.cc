#include "server/core/decisions/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

TEST(RecoveryTest, EndsOnlyWhenEveryRankSaidHello) {
  TestJob job;
  job.Connect(1);
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  EXPECT_EQ(job.daemon.View().waiting_for(), "ranks 0, 2 to register");
  job.Connect(0);
  EXPECT_EQ(job.daemon.View().waiting_for(), "rank 2 to register");
  job.Connect(2);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().waiting_for(), "");
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 0);
}

TEST(RecoveryTest, AnUnknownPlacementIsAskedForCheckedAndStored) {
  TestJob job;
  job.SetRunning(Exchanged({1, 2}), 7);
  for (int32_t rank = 0; rank < 3; ++rank) job.Connect(rank);
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  EXPECT_THAT(job.daemon.View().waiting_for(), HasSubstr("rank 0 to send the placement"));
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.stored().at(kJob).placement, Exchanged({1, 2}));
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 7);
  EXPECT_EQ(job.daemon.stored().at(kJob).next_version, 8);
  EXPECT_EQ(job.daemon.core().PlacementInForce(kJob)->placement, Exchanged({1, 2}));
}

TEST(RecoveryTest, ABodyThatIsNotItsDigestEndsThatSessionAndAnotherRankIsAsked) {
  TestJob job;
  job.SetRunning(Exchanged({1, 2}), 7);
  for (int32_t rank = 0; rank < 3; ++rank) job.Connect(rank);
  job.daemon.Say(job.ranks[0].session,
                 wire::PlacementBody{7, DigestOf(Exchanged({1, 2})), Exchanged({1})});
  EXPECT_EQ(job.ClosedWith(0)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Only<wire::NeedPlacement>(job.SentTo(1)).size(), 1u);
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
}

TEST(RecoveryTest, ARankThatDoesNotAnswerIsPassedOverAfterTheDeadline) {
  TestJob job;
  job.SetRunning(Exchanged({1, 2}), 7);
  job.ranks[0].silent = true;
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_THAT(job.daemon.LastReason("stuck"), HasSubstr("rank 0 to send the placement"));
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(RecoveryTest, ARankThatLeavesBeforeAnsweringIsPassedOverAtOnce) {
  TestJob job;
  job.SetRunning(Exchanged({1, 2}), 7);
  for (int32_t rank = 0; rank < 3; ++rank) job.Connect(rank);
  job.Disconnect(0);
  EXPECT_EQ(Only<wire::NeedPlacement>(job.SentTo(1)).size(), 1u);
}

TEST(RecoveryTest, RanksAreTheAuthorityOverTheStoredVersion) {
  PreparedJob job(Exchanged({0, 1}));
  job.VoteAndDeliver(11);
  ASSERT_EQ(job.daemon.stored().at(kJob).version, 1);
  job.daemon.Restart();
  job.SetRunning(Exchanged({}), 0);  // restored from an older checkpoint
  job.Relaunch("run-2");
  job.ConnectAll();
  job.daemon.Advance(absl::Seconds(11));  // run-1 does not come back
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 0);
  EXPECT_EQ(job.daemon.stored().at(kJob).next_version, 2);
  EXPECT_EQ(job.daemon.stored().at(kJob).placement, Exchanged({}));
}

TEST(RecoveryTest, ACommitThatSomeRanksStillHaveToReportIsWaitedFor) {
  PreparedJob job(Exchanged({0, 1}));
  job.daemon.Restart();
  job.Connect(0);
  job.Connect(1);
  job.Vote(11);
  job.ranks[2].outbox.clear();
  job.Connect(2);  // its Hello already tells version 1, ranks 0 and 1 said 0
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  job.DeliverUp(0);
  EXPECT_EQ(job.daemon.View().waiting_for(), "rank 1 to answer the Cancel of an earlier proposal");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 1);
}

TEST(RecoveryTest, ARankInTheMiddleOfACommitIsNamed) {
  TestJob job;
  job.SetRunning(Exchanged({1}), 1);
  job.ranks[1].placement = Exchanged({});
  job.ranks[1].version = 0;
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().waiting_for(), "rank 1 to apply version 1, which rank 0 runs");
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_THAT(job.daemon.LastReason("stuck"), HasSubstr("rank 1 to apply version 1"));
  job.daemon.Say(job.ranks[1].session, wire::Applied{1, DigestOf(Exchanged({1})), 12, 0, 0});
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 1);
}

TEST(RecoveryTest, AProposalOfAnEarlierDaemonIsCancelledFirst) {
  PreparedJob job(Exchanged({0, 1}));
  job.daemon.Restart();
  for (int32_t rank = 0; rank < 3; ++rank) job.Connect(rank);
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  EXPECT_EQ(job.daemon.View().waiting_for(),
            "all 3 ranks to answer the Cancel of an earlier proposal");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 0);
  for (const FakeRank& rank : job.ranks) EXPECT_FALSE(rank.ready.has_value());
}

TEST(RecoveryTest, OneVersionWithTwoDigestsIsQuarantined) {
  TestJob job;
  job.SetRunning(Exchanged({1}), 3);
  job.ranks[2].placement = Exchanged({2});
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "QUARANTINE");
  EXPECT_THAT(job.daemon.LastReason("quarantined"), HasSubstr("rank 0 and rank 2 run version 3"));
}

TEST(RecoveryTest, ALateReadyForAnEarlierDaemonsProposalHoldsTheJobAgain) {
  TestJob job;
  job.ranks[1].identity.highest_version = 5;
  job.ConnectAll();
  ASSERT_EQ(job.daemon.state(), "IDLE");
  job.daemon.Say(job.ranks[1].session, wire::Prepared{5, Sha256("x"), Sha256("plan")});
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  EXPECT_EQ(Only<wire::Cancel>(job.SentTo(1)).at(0).version, 5);
  job.daemon.Say(job.ranks[1].session, wire::Failed{5, wire::FailedCode::kCancelled, "", 0});
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(RecoveryTest, ANewShapeStartsFromItsStaticPlacement) {
  ConnectedJob job;
  wire::Hello grown = TestHello(0);
  grown.run_id = "run-2";
  grown.take_over = true;
  grown.shape.num_slots = 9;
  grown.running_digest = DigestOf(Placement::Static(Topology::Make(grown.shape).value()));
  for (int32_t rank = 0; rank < 3; ++rank) {
    grown.rank = grown.gpu = rank;
    (void)job.daemon.Join(grown);
  }
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().shape().num_slots(), 9);
  EXPECT_EQ(job.daemon.stored().at(kJob).placement->topology().num_slots(), 9);
}

}  // namespace
}  // namespace eplb::core
