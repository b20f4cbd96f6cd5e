#include "server/core/decisions/proposal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "server/core/decisions/prices.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {

namespace {

using ::testing::HasSubstr;

const Placement& AllLayers() {
  static const Placement* const placement = new Placement(Exchanged({0, 1, 2, 3}));
  return *placement;
}

TEST(ProposalTest, TwoChunksGoThroughAndEachHasItsVersionAndIsStored) {
  ProposedJob job(AllLayers());
  EXPECT_EQ(job.daemon.View().waiting_for(), "all 3 ranks to be PREPARED for version 1");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "VOTING");
  EXPECT_EQ(job.daemon.View().waiting_for(), "all 3 ranks to report version 1 as Applied");
  ASSERT_TRUE(job.VoteAndDeliver(12));
  EXPECT_EQ(job.daemon.LastReason("committed"),
            "version 1 (chunk 1 of 2) was committed at step 12: 300 B received, longest pause "
            "0.250 s");
  EXPECT_EQ(job.daemon.stored().at(kJob).version, 1);
  EXPECT_EQ(job.daemon.stored().at(kJob).placement, Exchanged({0, 1}));
  ASSERT_EQ(job.daemon.state(), "VOTING");  // chunk 2 was prepared meanwhile
  ASSERT_TRUE(job.VoteAndDeliver(14));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 2);
  EXPECT_EQ(job.daemon.View().commits(), 2);
  EXPECT_EQ(job.daemon.stored().at(kJob).placement, AllLayers());
  EXPECT_EQ(job.ranks[2].placement, AllLayers());
}

TEST(ProposalTest, ChunksOfAnOldLoadAreNotProposedAnyMore) {
  PreparedJob job(AllLayers());  // on the load up to step 9, a decision every 20 steps
  ASSERT_TRUE(job.VoteAndDeliver(9 + kMostIntervals * 20 + 1));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_PARTIAL);
  EXPECT_THAT(plan.reason(),
              ::testing::HasSubstr("; the load that the decision covers is 161 steps "
                                   "old, the next decision is due"));
}

TEST(ProposalTest, AProposalNamesItsBaseItsChunkAndWhy) {
  ProposedJob job(AllLayers());
  const auto proposals = Only<wire::Propose>(job.SentTo(1));
  ASSERT_EQ(proposals.size(), 1u);
  EXPECT_EQ(proposals[0].term, 1);
  EXPECT_EQ(proposals[0].version, 1);
  EXPECT_EQ(proposals[0].base_version, 0);
  EXPECT_EQ(proposals[0].base_digest, DigestOf(Exchanged({})));
  EXPECT_EQ(proposals[0].digest, DigestOf(Exchanged({0, 1})));
  EXPECT_EQ(proposals[0].layers.size(), 2u);
  EXPECT_EQ(proposals[0].chunk, 0);
  EXPECT_EQ(proposals[0].num_chunks, 2);
  EXPECT_THAT(proposals[0].reason, HasSubstr("peak GPU load of these steps falls 45.0 %"));
}

TEST(ProposalTest, TheChunksOfADecisionShareItsNumberAndARollbackHasItsOwn) {
  PreparedJob job(AllLayers());
  for (int64_t step = 12; job.Vote(step); step += 2) job.Deliver();
  ASSERT_TRUE(job.daemon.Ask(Rollback{}).ok());
  job.Deliver();
  const std::vector<wire::Propose>& proposals = job.ranks[1].proposals;
  ASSERT_GE(proposals.size(), 3u);
  for (const int chunk : {0, 1}) {
    EXPECT_EQ(proposals[chunk].decision, 1);
    EXPECT_EQ(proposals[chunk].policy, "incremental");
    EXPECT_EQ(proposals[chunk].asked_by, "");
  }
  EXPECT_EQ(proposals[2].decision, 2);
  EXPECT_EQ(proposals[2].policy, "rollback");
  EXPECT_EQ(proposals[2].asked_by, "ann");
}

TEST(ProposalTest, ANackCancelsItAndTheNextDecisionIsSkipped) {
  ProposedJob job(Exchanged({0, 1}));
  job.daemon.Say(job.ranks[1].session,
                 wire::Nack{1, wire::NackCode::kStagingTooSmall, "1 row free"});
  EXPECT_EQ(job.daemon.state(), "CANCELLING");
  EXPECT_EQ(job.daemon.LastReason("nacked"),
            "rank 1 refused version 1 (STAGING_TOO_SMALL): 1 row free");
  EXPECT_EQ(job.daemon.View().waiting_for(), "ranks 0, 2 to answer the Cancel of version 1");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 0);
  job.Report(20, 29);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  EXPECT_THAT(job.daemon.LastReason("kept"), HasSubstr("backing off"));
  job.Report(40, 49);
  EXPECT_EQ(job.daemon.num_solves(), 2);
}

TEST(ProposalTest, BackingOffDoublesUpToSixtyFourAndACommitEndsIt) {
  ConnectedJob job;
  int64_t step = 0;
  // Windows until the solver is asked again; returns how many decisions were skipped.
  const auto skipped_until_asked = [&job, &step] {
    for (int skipped = 0;; ++skipped) {
      job.Report(step, step + 19);
      step += 20;
      if (job.daemon.state() == "SOLVING") return skipped;
      if (skipped > 100) return -1;
    }
  };
  for (const int expected : {0, 1, 2, 4, 8, 16, 32, 64, 64}) {
    ASSERT_EQ(skipped_until_asked(), expected);
    job.daemon.AnswerSolve(Exchanged({0}));
    job.Deliver();
    ASSERT_TRUE(job.VoteAndDeliver(step, /*transfer_works=*/false));
  }
  ASSERT_EQ(skipped_until_asked(), 64);
  job.daemon.AnswerSolve(Exchanged({0}));
  job.Deliver();
  job.VoteAndDeliver(step);
  EXPECT_EQ(skipped_until_asked(), 0);
}

TEST(ProposalTest, ASecondVoteThatSaidNoEndsItWithTheTransfersReason) {
  PreparedJob job(AllLayers());
  ASSERT_TRUE(job.Vote(12, /*transfer_works=*/false));
  job.DeliverUp(0);
  EXPECT_EQ(job.daemon.state(), "VOTING");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.LastReason("withdrawn"),
            "version 1 was dropped by every rank: rank 0 dropped it: checksum of layer 0 differs");
  EXPECT_EQ(job.daemon.View().version(), 0);
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 1);
}

TEST(ProposalTest, RanksThatAreNotReadyInTimeAreNamedAndTheProposalCancelled) {
  ProposedJob job(AllLayers());
  job.ranks[2].silent = true;
  job.Deliver();
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_EQ(job.daemon.state(), "CANCELLING");
  EXPECT_EQ(job.daemon.LastReason("cancelling"),
            "within 1m it still waited for rank 2 to be PREPARED for version 1");
  job.ranks[2].silent = false;
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(ProposalTest, ACancelThatNobodyAnswersIsSentAgainAndCalledStuck) {
  ProposedJob job(AllLayers());
  job.daemon.Advance(absl::Seconds(61));
  job.SentTo(0);
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_EQ(Only<wire::Cancel>(job.SentTo(0)).size(), 1u);
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_EQ(job.daemon.CountEvents("stuck"), 1);
  EXPECT_EQ(job.daemon.state(), "CANCELLING");
}

TEST(ProposalTest, RanksThatNeverVoteAreAskedToForgetItAfterTheDeadline) {
  PreparedJob job(AllLayers());
  job.daemon.Advance(absl::Seconds(659));
  EXPECT_EQ(job.daemon.state(), "VOTING");
  job.daemon.Advance(absl::Seconds(2));
  EXPECT_EQ(job.daemon.state(), "CANCELLING");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(ProposalTest, TheRanksVoteWinsOverACancel) {
  ProposedJob job(Exchanged({0, 1}));
  for (int32_t rank = 0; rank < 3; ++rank) job.DeliverDown(rank);
  ASSERT_TRUE(job.Vote(12));
  job.daemon.Advance(absl::Seconds(61));  // before any Ready was heard
  ASSERT_EQ(job.daemon.state(), "CANCELLING");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 1);
  EXPECT_EQ(job.daemon.stored().at(kJob).placement, Exchanged({0, 1}));
}

TEST(ProposalTest, AppliedCountsBeforeTheOtherRanksReadyWasHeard) {
  ProposedJob job(Exchanged({0, 1}));
  for (int32_t rank = 0; rank < 3; ++rank) job.DeliverDown(rank);
  ASSERT_TRUE(job.Vote(12));
  job.DeliverUp(0);
  EXPECT_EQ(job.daemon.state(), "PREPARING");
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 1);
}

TEST(ProposalTest, AppliedTellsThatRowsGoAnotherWay) {
  PreparedJob job(Exchanged({0, 1}));
  ASSERT_TRUE(job.Vote(12));
  for (int32_t rank : {0, 2}) {
    auto& applied = std::get<wire::Applied>(job.ranks[rank].outbox.back());
    applied.transport = "host";
    applied.fallback_reason = "NCCL failed";
  }
  job.Deliver();
  const auto ranks = job.daemon.View().ranks();
  EXPECT_EQ(ranks[0].transport().name(), "host");
  EXPECT_EQ(ranks[0].transport().fallback_reason(), "NCCL failed");
  EXPECT_EQ(ranks[1].transport().name(), "");
  EXPECT_EQ(ranks[2].transport().name(), "host");
}

TEST(ProposalTest, AnotherDigestOrPlanWhenReadyIsQuarantinedAndCancelled) {
  const Digest digest = DigestOf(Exchanged({0, 1}));
  for (const std::vector<wire::Prepared>& answers :
       {std::vector<wire::Prepared>{{1, Sha256("other"), Sha256("plan")}},
        {{1, digest, Sha256("plan")}, {1, digest, Sha256("another plan")}}}) {
    ProposedJob job(Exchanged({0, 1}));
    for (size_t rank = 0; rank < answers.size(); ++rank) {
      job.daemon.Say(job.ranks[rank].session, answers[rank]);
    }
    EXPECT_EQ(job.daemon.state(), "QUARANTINE") << answers.size();
    EXPECT_EQ(Only<wire::Cancel>(job.SentTo(1)).size(), 1u);
  }
}

TEST(ProposalTest, WhatTheRanksDidNotDoTogetherIsQuarantined) {
  const std::pair<const char*, std::function<void(TestJob&)>> cases[] = {
      {"version 1 was applied by rank 0 and dropped by rank 1",
       [](TestJob& job) {
         job.ranks[0].Apply(12);
         job.ranks[1].Drop(wire::FailedCode::kTransfer, "no");
       }},
      {"rank 2 applied version 1 at step 14, another rank at step 12",
       [](TestJob& job) {
         for (FakeRank& rank : job.ranks) rank.Apply(rank.identity.rank == 2 ? 14 : 12);
       }},
      {"rank 0 runs version 0",
       [](TestJob& job) {
         job.ranks[0].Apply(12);
         job.DeliverUp(0);
         job.Disconnect(0);
         job.ranks[0].placement = Exchanged({});
         job.ranks[0].version = 0;
         job.Connect(0);
       }},
  };
  for (const auto& [reason, act] : cases) {
    PreparedJob job(Exchanged({0, 1}));
    act(job);
    job.Deliver();
    EXPECT_EQ(job.daemon.state(), "QUARANTINE") << reason;
    EXPECT_THAT(job.daemon.LastReason("quarantined"), HasSubstr(reason));
    const bool all_run_it = job.ranks[2].version == 1;
    EXPECT_EQ(job.daemon.stored().at(kJob).version, all_run_it ? 1 : 0) << reason;
  }
}

TEST(ProposalTest, QuarantineProposesNothingUntilANewRun) {
  ProposedJob job(Exchanged({0, 1}));
  job.daemon.Say(job.ranks[1].session, wire::Nack{1, wire::NackCode::kWrongDigest, "abc"});
  job.Deliver();
  job.Report(20, 39);
  job.Disconnect(1);
  job.daemon.Advance(absl::Hours(1));
  job.Connect(1);
  EXPECT_EQ(job.daemon.state(), "QUARANTINE");
  EXPECT_EQ(job.daemon.num_solves(), 1);
  for (FakeRank& rank : job.ranks) rank.identity.run_id = "run-2";
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  job.Report(0, 9);
  EXPECT_EQ(job.daemon.num_solves(), 2);
}

TEST(ProposalTest, QuarantineAsksAgainToForgetTheProposal) {
  ProposedJob job(Exchanged({0, 1}));
  job.daemon.Say(job.ranks[1].session, wire::Nack{1, wire::NackCode::kWrongDigest, "abc"});
  ASSERT_EQ(Only<wire::Cancel>(job.SentTo(0)).size(), 1U);
  job.daemon.Advance(TestConfig().cancel_deadline);
  EXPECT_EQ(Only<wire::Cancel>(job.SentTo(0)).size(), 1U);
  EXPECT_TRUE(Only<wire::Cancel>(job.SentTo(1)).empty());  // it answered
}

// Each message that was lost with its stream is sent again.
TEST(RejoinTest, ARankWhoseStreamWasCutEndsAsTheOthers) {
  const auto vote = [](TestJob& job, bool transfer_works) {
    job.Deliver();
    ASSERT_TRUE(job.Vote(12, transfer_works));
  };
  struct Case {
    const char* lost;
    std::function<void(TestJob&)> before;
    const char* meanwhile;
    const char* after;
    int64_t version;
  };
  const Case cases[] = {
      {"Propose", [](TestJob&) {}, "PREPARING", "VOTING", 0},
      {"Prepared", [](TestJob& job) { job.DeliverDown(1); }, "PREPARING", "VOTING", 0},
      {"Applied", [&](TestJob& job) { vote(job, true); }, "VOTING", "IDLE", 1},
      {"Failed", [&](TestJob& job) { vote(job, false); }, "VOTING", "IDLE", 0},
      {"Cancel",
       [](TestJob& job) {
         job.DeliverDown(1);
         job.DeliverUp(1);
         job.daemon.Advance(absl::Seconds(61));
       },
       "CANCELLING", "IDLE", 0},
  };
  for (const Case& one : cases) {
    ProposedJob job(Exchanged({0, 1}));
    one.before(job);
    job.Disconnect(1);
    for (const int32_t rank : {0, 2}) job.DeliverUp(rank);
    EXPECT_EQ(job.daemon.state(), one.meanwhile) << one.lost;
    job.Connect(1);
    job.Deliver();
    EXPECT_EQ(job.daemon.state(), one.after) << one.lost;
    EXPECT_EQ(job.daemon.View().version(), one.version) << one.lost;
    EXPECT_EQ(job.ranks[1].ready.has_value(), one.after == std::string("VOTING")) << one.lost;
  }
}

TEST(ProposalTest, ACommitOfAnEarlierDaemonsProposalCancelsOursAndIsAdopted) {
  TestJob job;
  for (FakeRank& rank : job.ranks) rank.identity.highest_version = 9;
  job.Propose(Exchanged({0, 1}));
  for (FakeRank& rank : job.ranks) {
    rank.ready = FakeRank::Candidate{9, DigestOf(Exchanged({3})), Exchanged({3})};
    rank.Apply(12);
  }
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 9);
  EXPECT_EQ(job.daemon.stored().at(kJob).placement, Exchanged({3}));
  EXPECT_EQ(job.daemon.stored().at(kJob).next_version, 11);
}

TEST(ProposalTest, ARankThatFinishesWithdrawsIt) {
  PreparedJob job(AllLayers());
  job.daemon.Say(job.ranks[1].session, wire::Goodbye{"finished", {}, false});
  EXPECT_EQ(job.daemon.state(), "CANCELLING");
  job.ranks[1].session = 0;
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(ProposalTest, VotesFarApartAreWaitedForAndNamedWhenTheyDoNotCome) {
  Config config = TestConfig();
  config.voting_deadline = absl::Seconds(6);
  ConnectedJob job(config);
  for (int64_t step = 0; step < 30; step += 10) {  // 4 s a step, a vote every 2 steps
    job.daemon.Advance(absl::Seconds(40));
    job.Report(step, step + 9);
    if (step < 20) job.daemon.AnswerSolve(Exchanged({}));
  }
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0})));
  job.Deliver();
  job.daemon.Advance(absl::Seconds(25));
  EXPECT_EQ(job.daemon.state(), "VOTING");
  job.daemon.Advance(absl::Seconds(25));
  EXPECT_EQ(job.daemon.state(), "CANCELLING");
  EXPECT_THAT(job.daemon.LastReason("cancelling"),
              ::testing::HasSubstr("; the ranks vote every 2 steps, 8."));
}

}  // namespace

}  // namespace eplb::core
