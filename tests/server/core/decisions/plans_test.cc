#include "server/core/decisions/plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/decisions/plans.h"
#include "server/core/state/state.h"
#include "tests/server/core/core_harness.h"
#include "tests/support/messages.h"

namespace eplb::core {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlansTest, ACommittedPlanHasItsPredictionsAndWhatWasMeasured) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_PROPOSED);
  EXPECT_EQ(plan.plan(), 1);
  EXPECT_EQ(plan.policy(), "incremental");
  EXPECT_EQ(plan.first_version(), 1);
  EXPECT_EQ(plan.decided_last_step(), 9);
  EXPECT_NEAR(plan.balancedness_before(), 0.4, 1e-9);
  // The first prediction cannot know which part of the gain will be seen: 0.4 .. 80 / 110.
  EXPECT_NEAR(plan.balancedness_predicted(), (0.4 + 80.0 / 110) / 2, 1e-9);
  EXPECT_FALSE(plan.has_prediction_error()) << "no prediction was compared yet";
  EXPECT_TRUE(plan.has_prediction_evidence());
  EXPECT_EQ(plan.prediction_evidence(), 0);
  EXPECT_NEAR(plan.peak_fall(), 0.45, 1e-9);
  EXPECT_FALSE(plan.has_prepare_seconds());
  EXPECT_EQ(plan.transfers(), 8);
  EXPECT_EQ(plan.num_chunks(), 2);
  EXPECT_EQ(plan.solve_seconds(), 0.001);
  for (int64_t step = 12; step < 16; step += 2) {
    job.daemon.Advance(absl::Milliseconds(500));
    job.Deliver();
    job.daemon.Advance(absl::Milliseconds(2000));
    ASSERT_TRUE(job.VoteAndDeliver(step));
  }
  plan = job.NewestPlan();
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_COMMITTED);
  EXPECT_EQ(plan.chunks_committed(), 2);
  EXPECT_EQ(plan.last_version(), 2);
  EXPECT_EQ(plan.received_bytes(), 600);
  EXPECT_EQ(plan.pause_seconds(), 0.25);
  EXPECT_EQ(plan.prepare_seconds(), 0.5);
  EXPECT_EQ(plan.switched_step(), 14);
  EXPECT_EQ(job.daemon.plans().at(1), plan);
  const Counters& counters = job.daemon.core().counters();
  EXPECT_EQ(counters.transfers, 8);
  EXPECT_EQ(counters.received_bytes, 600);
  EXPECT_EQ(counters.plans[v1::PLAN_RESULT_COMMITTED], 1);
  EXPECT_EQ(counters.prepared, 6);
  EXPECT_EQ(counters.pause_seconds.total(), 6);
  EXPECT_EQ(counters.prepare_seconds.total(), 2);
  EXPECT_EQ(counters.prepare_seconds.sum_seconds, 0.5) << "the second chunk's ranks were quick";
  EXPECT_EQ(counters.gate_wait_seconds.total(), 2);
  EXPECT_EQ(counters.gate_wait_seconds.sum_seconds, (2 - 0.25) + (2.5 - 0.25))
      << "without the boundaries";
}

// A job whose newest decision has committed all its chunks, and whose prediction of an earlier one
// was compared with what followed.
TestJob Committed() {
  AskedJob job;
  EXPECT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  job.Report(10, 19);
  job.Report(20, 29);
  EXPECT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  for (const int64_t step : {32, 34}) {
    job.Deliver();
    EXPECT_TRUE(job.VoteAndDeliver(step));
  }
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_COMMITTED);
  return job;
}

// All ranks report a whole window under the decision's placement.
void ReportAfter(TestJob& job, const LoadMatrix& counts) {
  wire::LoadReport report = TestReport(40, 49);
  report.counts = counts;
  report.version = 2;
  job.SayAll(report);
}

// Returns the predictions that were within, above and below.
std::vector<uint64_t> Predictions(const TestJob& job) {
  const v1::PredictionCounts counts = job.daemon.View().prediction_counts();
  return {counts.within(), counts.above(), counts.below()};
}

TEST(PlansTest, APredictionIsCountedOnceByWhatFollowed) {
  TestJob job = Committed();
  EXPECT_THAT(Predictions(job), Each(0)) << "nothing followed yet";
  EXPECT_GT(job.NewestPlan().prediction_error(), 0);
  LoadMatrix counts = TestReport(40, 49).counts;
  counts.col(0) = 129;  // a little less even than the load that was decided on
  ReportAfter(job, counts);
  EXPECT_THAT(Predictions(job), ElementsAre(1, 0, 0));
  wire::LoadReport next = TestReport(50, 59);
  next.version = 2;
  job.SayAll(next);
  EXPECT_THAT(Predictions(job), ElementsAre(1, 0, 0));
}

TEST(PlansTest, APredictionWithoutAnErrorIsNeitherWithinNorMissed) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  ReportAfter(job, LoadMatrix::Constant(4, 6, 100));
  EXPECT_TRUE(job.NewestPlan().has_balancedness_seen());
  EXPECT_THAT(Predictions(job), Each(0));
}

TEST(PlansTest, AMissIsCountedByItsDirection) {
  TestJob less = Committed();
  LoadMatrix counts = LoadMatrix::Zero(4, 6);
  counts.col(0) = 600;  // one GPU of three has all tokens
  ReportAfter(less, counts);
  EXPECT_LT(less.NewestPlan().balancedness_seen(), 0.34);
  EXPECT_THAT(Predictions(less), ElementsAre(0, 0, 1));
  TestJob better = Committed();
  ReportAfter(better, LoadMatrix::Constant(4, 6, 100));
  EXPECT_GT(better.NewestPlan().balancedness_seen(), 0.99);
  EXPECT_THAT(Predictions(better), ElementsAre(0, 1, 0));
}

// 3 ranks; rank 1 answers last, at 500 ms, and has the longest pause.
TEST(PlansTest, TheTimesOfAChunkAreThoseAtWhichTheDaemonSawIt) {
  TestJob job;
  const int64_t began = absl::ToUnixMicros(job.daemon.now());
  job.ConnectAll();
  job.ReportOf(0, 0, 9);
  job.daemon.Advance(absl::Milliseconds(30));
  job.ReportOf(1, 0, 9);
  job.ReportOf(2, 0, 9);
  job.daemon.Advance(absl::Milliseconds(20));
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1})));
  const int64_t proposed = began + 50'000;
  for (const int32_t rank : {0, 1, 2}) job.DeliverDown(rank);
  job.daemon.Advance(absl::Milliseconds(100));
  job.DeliverUp(2);
  job.DeliverUp(0);
  job.daemon.Advance(absl::Milliseconds(400));
  EXPECT_EQ(job.NewestPlan().times().chunks(0).prepared_unix_micros(), 0)
      << "rank 1 has not answered";
  job.DeliverUp(1);
  job.daemon.Advance(absl::Seconds(1));
  for (FakeRank& rank : job.ranks) {
    rank.Apply(12);
    std::get<wire::Applied>(rank.outbox.back()).pause_seconds =
        rank.identity.rank == 1 ? 0.5 : 0.25;
  }
  job.DeliverUp(0);
  job.DeliverUp(1);
  job.daemon.Advance(absl::Seconds(1));
  job.DeliverUp(2);
  const v1::PlanTimes times = job.NewestPlan().times();
  EXPECT_EQ(times.window_began_unix_micros(), began);
  EXPECT_EQ(times.window_complete_unix_micros(), began + 30'000);
  ASSERT_EQ(times.chunks_size(), 1);
  const v1::ChunkTimes& chunk = times.chunks(0);
  EXPECT_EQ(chunk.version(), 1);
  EXPECT_EQ(chunk.num_layers(), 2);
  EXPECT_EQ(chunk.proposed_unix_micros(), proposed);
  EXPECT_EQ(chunk.prepared_unix_micros(), proposed + 500'000);
  EXPECT_EQ(chunk.ended_unix_micros(), proposed + 2'500'000);
  EXPECT_TRUE(chunk.committed());
  EXPECT_EQ(chunk.longest_pause_rank(), 1);
  EXPECT_EQ(chunk.longest_pause_seconds(), 0.5);
  EXPECT_EQ(chunk.timed_ranks(), 3);
  ASSERT_EQ(chunk.ranks_size(), 3);
  EXPECT_EQ(chunk.ranks(0).rank(), 2);
  EXPECT_EQ(chunk.ranks(0).prepared_unix_micros(), proposed + 100'000);
  EXPECT_EQ(chunk.ranks(0).applied_unix_micros(), chunk.ended_unix_micros());
  EXPECT_EQ(chunk.ranks(2).rank(), 1) << "the slowest";
  EXPECT_EQ(chunk.ranks(2).prepared_unix_micros(), chunk.prepared_unix_micros());
  EXPECT_EQ(chunk.ranks(2).applied_unix_micros(), proposed + 1'500'000);
  EXPECT_EQ(chunk.ranks(2).pause_seconds(), 0.5);
  EXPECT_EQ(job.daemon.plans().at(1), job.NewestPlan()) << "stored as it is shown";
  v1::Plan listed = job.NewestPlan();
  listed.clear_times();
  EXPECT_EQ(job.daemon.core().Plans(kJob, 1)->front(), listed);
}

TEST(PlansTest, AWithdrawnChunkEndsUncommittedAndOneThatARestartCutHasNoEnd) {
  TestJob withdrawn;
  withdrawn.Propose(Exchanged({0, 1}));
  withdrawn.Deliver();
  ASSERT_TRUE(withdrawn.VoteAndDeliver(12, /*transfer_works=*/false));
  const v1::ChunkTimes chunk = withdrawn.NewestPlan().times().chunks(0);
  EXPECT_EQ(chunk.ended_unix_micros(), absl::ToUnixMicros(withdrawn.daemon.now()));
  EXPECT_FALSE(chunk.committed());
  EXPECT_FALSE(chunk.has_longest_pause_rank());
  EXPECT_FALSE(chunk.has_longest_pause_seconds());

  TestJob cut;
  cut.Propose(Exchanged({0, 1}));
  cut.Deliver();
  cut.daemon.Restart();
  ASSERT_TRUE(cut.Vote(12));
  cut.ConnectAll();
  ASSERT_EQ(cut.NewestPlan().chunks_committed(), 1);
  EXPECT_EQ(cut.NewestPlan().times().chunks(0).ended_unix_micros(), 0);
}

TEST(PlansTest, TheChunksOfOldPlansHaveNoTimes) {
  Job job;
  for (int32_t i = 0; i < kTimedPlans + 2; ++i) {
    job.plans.push_back(MessageOf<v1::Plan>("times { chunks { version: 1 } }"));
  }
  ForgetOldTimes(job);
  EXPECT_EQ(job.plans[0].times().chunks_size(), 0);
  EXPECT_EQ(job.plans[1].times().chunks_size(), 0);
  EXPECT_EQ(job.plans[2].times().chunks_size(), 1);
  EXPECT_EQ(job.plans.back().times().chunks_size(), 1);
}

TEST(PlansTest, OfDecisionsOfAutoThatKeepInARowTheNewestIsListed) {
  Config config = TestConfig();
  config.settings.policy = "auto";
  AskedJob job(config);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  job.Report(10, 19);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_EQ(job.daemon.core().Plans(kJob, 9)->size(), 1u);
  EXPECT_EQ(job.NewestPlan().decided_last_step(), 19u);
}

TEST(PlansTest, OfManyRanksTheSlowestAreKept) {
  Job job;
  job.plans.push_back(
      MessageOf<v1::Plan>("plan: 1 result: PLAN_RESULT_PROPOSED times { chunks { version: 1 "
                          "proposed_unix_micros: 1 } }"));
  job.proposal.emplace().message.decision = 1;
  for (int32_t rank = 0; rank < 100; ++rank) {
    NoteRankPrepared(job, rank, absl::FromUnixMicros(100 + rank));
    NoteRankPrepared(job, rank, absl::FromUnixMicros(1000));  // said again
  }
  const v1::ChunkTimes& chunk = job.plans[0].times().chunks(0);
  EXPECT_EQ(chunk.timed_ranks(), 100);
  ASSERT_EQ(chunk.ranks_size(), kTimedRanks);
  EXPECT_EQ(chunk.ranks(0).rank(), 100 - kTimedRanks);
  EXPECT_EQ(chunk.ranks(kTimedRanks - 1).rank(), 99);
  EXPECT_EQ(chunk.ranks(kTimedRanks - 1).prepared_unix_micros(), 199);
}

TEST(PlansTest, AKeptDecisionAndAFailingPolicyAreRecorded) {
  AskedJob job;
  job.daemon.AnswerSolve(Exchanged({}));
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_KEPT);
  EXPECT_EQ(job.NewestPlan().num_chunks(), 0);
  job.Report(10, 19);
  job.Report(20, 29);
  job.daemon.AnswerSolve(absl::InternalError("no idea"));
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_FAILED);
  EXPECT_EQ(job.NewestPlan().plan(), 2);
  EXPECT_THAT(job.NewestPlan().reason(), HasSubstr("no idea"));
}

TEST(PlansTest, AFigureThatHasNoSampleIsNotSet) {
  AskedJob job;
  job.daemon.AnswerSolve(absl::InternalError("no idea"));
  const v1::Plan plan = job.NewestPlan();
  EXPECT_FALSE(plan.has_balancedness_in_force());
  EXPECT_FALSE(plan.has_balancedness_predicted());
  EXPECT_FALSE(plan.has_prediction_error());
  EXPECT_FALSE(plan.has_prediction_evidence());
  EXPECT_FALSE(plan.has_peak_fall());
  EXPECT_FALSE(plan.has_net_gain_seconds());
  EXPECT_FALSE(plan.has_migration_seconds());
  EXPECT_FALSE(plan.has_prepare_seconds());
  EXPECT_FALSE(plan.has_pause_seconds());
  EXPECT_TRUE(plan.has_received_bytes()) << "nothing was received";
}

TEST(PlansTest, AWithdrawnPlanSaysWhy) {
  PreparedJob job(Exchanged({0, 1}));
  ASSERT_TRUE(job.VoteAndDeliver(12, /*transfer_works=*/false));
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_WITHDRAWN);
  EXPECT_THAT(job.NewestPlan().reason(), HasSubstr("checksum of layer 0 differs"));
  EXPECT_EQ(job.daemon.core().counters().failed.at(2), 3);
}

TEST(PlansTest, AnEndingRunSettlesThePlan) {
  ProposedJob job(Exchanged({0, 1}));
  job.Disconnect(0);
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_WITHDRAWN);
}

TEST(PlansTest, AfterARestartTheRanksSayWhatBecameOfThePlan) {
  for (const bool applied : {true, false}) {
    TestJob job;
    job.Propose(Exchanged({0, 1, 2, 3}));
    job.Deliver();
    job.daemon.Restart();
    EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_PROPOSED);
    if (applied) {
      ASSERT_TRUE(job.Vote(12));
    } else {
      for (FakeRank& rank : job.ranks) rank.ready.reset();
    }
    job.ConnectAll();
    ASSERT_EQ(job.daemon.state(), "IDLE");
    EXPECT_EQ(job.NewestPlan().result(),
              applied ? v1::PLAN_RESULT_PARTIAL : v1::PLAN_RESULT_WITHDRAWN);
    EXPECT_EQ(job.NewestPlan().chunks_committed(), applied ? 1 : 0);
    // The daemon that the ranks told what they received and how long it took is gone.
    EXPECT_EQ(job.NewestPlan().has_received_bytes(), !applied);
    EXPECT_FALSE(job.NewestPlan().has_pause_seconds());
  }
}

TEST(PlansTest, AVersionReservedBetweenTwoChunksIsNotCountedAsAChunk) {
  PreparedJob job(Exchanged({0, 1, 2, 3}));
  job.daemon.Handle(ReserveVersion{.ticket = 1, .job = kJob});
  ASSERT_EQ(job.daemon.replies().at(1)->version, 2);
  ASSERT_TRUE(job.VoteAndDeliver(12));  // chunk 1 is committed, chunk 2 proposed
  ASSERT_EQ(job.NewestPlan().num_chunks(), 2);
  ASSERT_EQ(job.NewestPlan().chunks_committed(), 1);
  job.daemon.Restart();
  ASSERT_TRUE(job.Vote(20));
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().version(), 3);
  EXPECT_EQ(job.NewestPlan().chunks_committed(), 2);
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_COMMITTED);
}

TEST(PlansTest, APlanOfBeforeARestartIsShownAsItWasStored) {
  PreparedJob job(Exchanged({0, 1}));
  for (FakeRank& rank : job.ranks) {
    rank.Apply(12);
    auto& applied = std::get<wire::Applied>(rank.outbox.back());
    applied.received_bytes = 700;
    applied.pause_seconds = 0.25;
  }
  job.Deliver();
  const v1::Plan before = job.NewestPlan();
  EXPECT_EQ(before.received_bytes(), 2100);
  EXPECT_EQ(before.pause_seconds(), 0.25);
  job.daemon.Restart();
  EXPECT_EQ(job.NewestPlan(), before);
}

TEST(PlansTest, ARankThatComesBackWithTheVersionLeavesTheBytesUnknown) {
  PreparedJob job(Exchanged({0, 1}));
  job.Disconnect(1);
  ASSERT_TRUE(job.Vote(12));
  job.ranks[1].outbox.clear();  // its Applied is lost, its Hello tells the version
  job.Connect(1);
  job.Deliver();
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_COMMITTED);
  EXPECT_FALSE(job.NewestPlan().has_received_bytes());
  EXPECT_THAT(job.daemon.LastReason("committed"), HasSubstr("an unknown number of bytes received"));
}

TEST(PlansTest, AnObservedJobExplainsAndProposesNothing) {
  Config config = TestConfig();
  config.settings.observe = true;
  AskedJob job(config);
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_OBSERVED);
  EXPECT_EQ(job.daemon.LastReason("observed"),
            "would have rebalanced, steps 0..9: peak GPU load of these steps falls 45.0 % "
            "(balancedness measured 0.400, predicted 0.564 +- unknown, gain +0.164; "
            "no earlier prediction to judge by), "
            "4 layers in 2 chunks, 8 transfers; not priced: set cost.token_ns, cost.intra_gbps and "
            "cost.inter_gbps to see seconds");
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 0);
}

TEST(PlansTest, OnlyTheNewestPlansAreKeptAndTheLimitBoundsTheAnswer) {
  Config config = TestConfig();
  config.settings.every_steps = 1;
  ConnectedJob job(config);
  for (int64_t i = 0; i < kMaxPlans + 5; ++i) {
    job.Report(10 * i, 10 * i + 9);
    ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  }
  const std::vector<v1::Plan> plans = *job.daemon.core().Plans(kJob, 5000);
  ASSERT_EQ(plans.size(), kMaxPlans);
  EXPECT_EQ(plans.front().plan(), kMaxPlans + 5);
  EXPECT_EQ(plans.back().plan(), 6);
  EXPECT_EQ(job.daemon.core().Plans(kJob, 3)->size(), 3);
  EXPECT_EQ(job.daemon.View().newest_plan().plan(), kMaxPlans + 5);
  EXPECT_EQ(job.daemon.core().Plans("x", 3).status().code(), absl::StatusCode::kNotFound);
}

TEST(PlansTest, AProposalWhoseTermCannotBeStoredWasNeverMade) {
  AskedJob job;
  // The daemon's term cannot be stored: no other rank is welcomed.
  job.daemon.term_store_works = false;
  job.daemon.Handle(StoreFailed{"", absl::UnavailableError("disk full")});
  wire::Hello hello = TestHello(0);
  hello.job = "other";
  const SessionId session = job.daemon.Join(hello);
  ASSERT_TRUE(job.daemon.ClosedWith(session).has_value());
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1})));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_WITHDRAWN);
  EXPECT_TRUE(Only<wire::Propose>(job.SentTo(0)).empty());
  EXPECT_FALSE(job.daemon.core().Readiness().ok());
  // The term is stored again as soon as it can be.
  job.daemon.term_store_works = true;
  for (int i = 0; i < 3; ++i) job.daemon.Advance(absl::Seconds(11));  // then what was behind it
  EXPECT_TRUE(job.daemon.core().Readiness().ok());
}

TEST(PlansTest, ATermBehindAStoreThatFailedIsWrittenLater) {
  PreparedJob job(Exchanged({0, 1, 2, 3}));
  // The daemon's term cannot be stored.
  job.daemon.term_store_works = false;
  job.daemon.Handle(StoreFailed{"", absl::UnavailableError("disk full")});
  wire::Hello hello = TestHello(0);
  hello.job = "other";
  const SessionId other = job.daemon.Join(hello);
  ASSERT_EQ(job.daemon.ClosedWith(other)->code(), absl::StatusCode::kUnavailable);
  job.daemon.term_store_works = true;
  // The commit of the first chunk cannot be stored, so the term before the second one is not tried.
  job.daemon.store_works = false;
  ASSERT_TRUE(job.VoteAndDeliver(12));
  ASSERT_FALSE(job.daemon.core().Readiness().ok());
  job.daemon.store_works = true;
  job.Disconnect(0);
  job.Connect(0);
  job.Deliver();
  for (int i = 0; i < 2; ++i) job.daemon.Advance(absl::Seconds(11));
  EXPECT_TRUE(job.daemon.core().Readiness().ok());
}

}  // namespace
}  // namespace eplb::core
