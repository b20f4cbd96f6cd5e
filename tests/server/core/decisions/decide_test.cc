#include "server/core/decisions/decide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/decisions/prices.h"
#include "server/core/decisions/question.h"
#include "server/core/solution.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The question of exchanging the hot pair of every layer.
class EvaluateCandidateTest : public ::testing::Test {
 protected:
  CandidateDecision Evaluate() const { return EvaluateCandidate(question_).value(); }
  // Returns the current placement once all chunks are committed.
  Placement AfterAll(std::vector<Chunk> chunks) const {
    Placement in_force = incumbent_;
    for (Chunk& chunk : chunks) {
      EXPECT_TRUE(Complete(in_force, chunk).ok());
      in_force = *chunk.after;
    }
    return in_force;
  }

  Load load_ = Load::FromCounts(TestReport(0, 9).counts).value();
  Placement incumbent_ = Exchanged({});
  Placement candidate_ = Exchanged({0, 1, 2, 3});
  CandidateInput question_ = {.load = load_,
                              .num_steps = 10,
                              .first_step = 0,
                              .last_step = 9,
                              .incumbent = incumbent_,
                              .candidate = candidate_,
                              .min_gain = 0.05,
                              .staging_rows = 2,
                              .limits = {.layers_per_chunk = 2},
                              .migration = {.weight_bytes = 8, .state_bytes = 16}};
};

TEST_F(EvaluateCandidateTest, AGainAboveTheThresholdIsProposedWithItsFiguresInTheSentence) {
  const CandidateDecision decision = Evaluate();
  ASSERT_EQ(decision.chunks.size(), 2u);
  EXPECT_EQ(AfterAll(decision.chunks), candidate_);
  // GPU loads 200, 20, 20 become 110, 110, 20 in each layer: 1 - 110 / 200, 80 / 200, 80 / 110.
  EXPECT_EQ(decision.reason,
            "steps 0..9: peak GPU load of these steps falls 45.0 % (balancedness computed 0.400 -> "
            "0.727), 4 layers in 2 chunks, 8 transfers");
  EXPECT_EQ(decision.left_out, "");
}

TEST_F(EvaluateCandidateTest, WithSpeedsAGpusLoadIsItsTokensDividedBySpeed) {
  const GpuSpeeds speeds = GpuSpeeds::Make(3, std::vector<double>{1, 0.5, 1}, {}).value();
  question_.speeds = &speeds;
  // Loads 200, 40, 20 would become 110, 220, 20: what is even in tokens keeps the slow GPU longest.
  const CandidateDecision decision = Evaluate();
  EXPECT_TRUE(decision.chunks.empty());
  EXPECT_NEAR(decision.balancedness_before, 260 / 3.0 / 200, 1e-12);
  EXPECT_NEAR(decision.prediction.balancedness, 350 / 3.0 / 220, 1e-12);
  EXPECT_NEAR(decision.peak_fall, 1 - 220 / 200.0, 1e-12);
}

TEST_F(EvaluateCandidateTest, AGainBelowTheThresholdIsKeptWithTheReason) {
  question_.min_gain = 0.5;
  EXPECT_TRUE(Evaluate().chunks.empty());
  EXPECT_EQ(Evaluate().reason,
            "steps 0..9: kept, peak GPU load of these steps would fall 45.0 % (balancedness "
            "computed 0.400 -> 0.727), less than min_gain, 50.0 %");
}

TEST_F(EvaluateCandidateTest, WhatGainsNothingIsKeptEvenWithoutAThreshold) {
  question_.min_gain = 0;
  for (const int64_t tokens : {5, 0}) {
    load_ = Load::FromCounts(LoadMatrix::Constant(4, 6, tokens)).value();
    EXPECT_TRUE(Evaluate().chunks.empty()) << tokens;
  }
  candidate_ = incumbent_;
  EXPECT_THAT(Evaluate().reason, HasSubstr("changes nothing"));
}

TEST_F(EvaluateCandidateTest, LayersThatNeedMoreStagingThanTheRanksHaveAreLeftOutByName) {
  // Layer 0: one expert into two GPUs each; layer 2: both slots of GPUs 0 and 1 change.
  IndexMatrix slots = Exchanged({0}).physical_to_logical_map();
  slots.row(2) << 2, 3, 0, 1, 4, 5;
  candidate_ = Placement::FromSlots(incumbent_.topology(), slots).value();
  question_.staging_rows = 1;
  const CandidateDecision decision = Evaluate();
  ASSERT_EQ(decision.chunks.size(), 1u);
  EXPECT_EQ(AfterAll(decision.chunks), Exchanged({0}));
  EXPECT_EQ(decision.left_out,
            "steps 0..9: layer 2 left out, 2 rows of staging on one GPU are needed and the ranks "
            "have 1");
}

TEST_F(EvaluateCandidateTest, WithPricesAGainMustEarnItsMigration) {
  LearnedGate gate{.horizon_steps = 40, .windows = 4, .shown = {.realized = 1}};
  question_.migration = {.weight_bytes = 1'000'000};
  question_.costs = {.token_seconds = 1e-6, .intra_bytes_per_s = 1e9};
  question_.learned = &gate;
  EXPECT_TRUE(Evaluate().chunks.empty());
  gate.horizon_steps = 10'000;
  const CandidateDecision decision = Evaluate();
  EXPECT_EQ(decision.chunks.size(), 2u);
  // 4 layers * 90 tokens * 1 us a window; 4 layers * 1 MB into GPU 0 at 1 GB/s.
  EXPECT_THAT(decision.reason, HasSubstr("rebalance saves 0.36 s over 10000 steps"));
  EXPECT_THAT(decision.reason, HasSubstr("4 ms of migration"));
  EXPECT_DOUBLE_EQ(decision.migration_seconds.value(), 0.004);
  EXPECT_DOUBLE_EQ(decision.net_gain_seconds.value(), 0.36 - 0.004);
}

TEST_F(EvaluateCandidateTest, ALoadOfAnotherShapeIsAnError) {
  load_ = Load::FromCounts(LoadMatrix::Zero(4, 5)).value();
  EXPECT_EQ(EvaluateCandidate(question_).status().code(), absl::StatusCode::kInvalidArgument);
}

// The job and its solver, whose windows keep their load.
TEST(TriggerTest, WithPricesAFixedPolicyMovesOnceItsBackTestHasProvedTheGain) {
  Config config = TestConfig();
  config.costs.token_seconds = 1e-5;
  config.costs.stall_seconds = 1e-2;  // 2.7 windows' gain
  ConnectedJob job(config);
  for (int64_t first = 0; first < 100 && job.daemon.CountEvents("proposed") == 0; first += 10) {
    job.Report(first, first + 9);
    if (job.daemon.state() != "SOLVING") continue;
    job.daemon.Handle(AnswerSolve(*job.daemon.pending_solve()));
    if (first == 0) {
      EXPECT_THAT(job.daemon.LastReason("kept"), HasSubstr("4.0 times the cost"));
    }
  }
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 1);
  EXPECT_THAT(job.daemon.LastReason("proposed"), HasSubstr("rebalance saves"));
  EXPECT_TRUE(job.daemon.View().candidates().empty()) << "there is nothing to choose";
}

TEST(TriggerTest, TheFirstCompleteWindowIsDecidedOnAndTheNextOnlyAfterPolicyEverySteps) {
  AskedJob job;
  ASSERT_EQ(job.daemon.num_solves(), 1);
  EXPECT_EQ(job.daemon.state(), "SOLVING");
  job.daemon.AnswerSolve(Exchanged({}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  job.Report(10, 19);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  job.Report(20, 29);
  ASSERT_EQ(job.daemon.num_solves(), 2);
  // Both windows since the decision at step 9: 2 windows x 3 ranks x 100 tokens.
  // The policy gets them one by one, as in a replay.
  const PlannerQuestion& question = job.daemon.pending_solve()->question->planner;
  const ExpectedLoad expected =
      ExpectLoad(question.options.candidates.at(0).estimate, question.windows).value();
  EXPECT_EQ(expected.load.counts()(0, 0), 600);
  ASSERT_EQ(expected.recent.size(), 2u);
  EXPECT_EQ(expected.recent[1].counts()(0, 0), 300);
}

TEST(TriggerTest, NothingIsDecidedWhileTheJobIsFrozen) {
  Config config = TestConfig();
  config.settings.freeze_steps.first = 0;
  config.settings.freeze_steps.last = 19;
  ConnectedJob job(config);
  const std::string frozen = "step 20: nothing is decided in the frozen steps 0:19";
  EXPECT_EQ(job.daemon.View().waiting_for(), frozen);
  job.Report(0, 9);
  job.Report(10, 19);
  EXPECT_EQ(job.daemon.num_solves(), 0);
  EXPECT_EQ(job.daemon.View().waiting_for(), frozen);
  EXPECT_EQ(job.daemon.CountEvents("freeze_over"), 0);
  job.Report(20, 29);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  EXPECT_EQ(job.daemon.LastReason("freeze_over"),
            "step 29: the frozen steps 0:19 are over, decisions are made again");
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_EQ(job.daemon.View().waiting_for(), "");
  for (int64_t first = 30; first < 80; first += 10) job.Report(first, first + 9);
  EXPECT_EQ(job.daemon.CountEvents("freeze_over"), 1);
}

TEST(TriggerTest, NothingIsDecidedWhileARankIsAway) {
  ConnectedJob job;
  for (int32_t rank = 0; rank < 3; ++rank) {
    if (rank == 2) job.Disconnect(0);
    job.daemon.Say(job.ranks[rank].session, TestReport(0, 9));
  }
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 9);
  EXPECT_EQ(job.daemon.num_solves(), 0);
  job.Connect(0);
  job.Report(10, 19);
  EXPECT_EQ(job.daemon.num_solves(), 1);
}

TEST(TriggerTest, AFailingPolicyIsKeptWithItsMessage) {
  AskedJob job;
  job.daemon.AnswerSolve(absl::InvalidArgumentError("6 slots refused"));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_THAT(job.daemon.LastReason("kept"), HasSubstr("6 slots refused"));
}

TEST(TriggerTest, ASolverThatNeverAnswersMeetsItsDeadlineAndItsLateAnswerIsIgnored) {
  AskedJob job;
  job.daemon.Advance(absl::Seconds(59));
  EXPECT_EQ(job.daemon.View().waiting_for(), "the solver");
  job.daemon.Advance(absl::Seconds(2));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_THAT(job.daemon.LastReason("kept"), HasSubstr("within 1m"));
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 0);
}

TEST(TriggerTest, TheSolversDeadlineCountsFromWhenItBegins) {
  ConnectedJob job;
  job.daemon.solver_is_busy = true;
  job.Report(0, 9);
  job.daemon.Advance(absl::Seconds(200));
  EXPECT_EQ(job.daemon.View().waiting_for(), "the solver, which works for other jobs");
  job.daemon.solver_is_busy = false;
  job.daemon.Advance(absl::ZeroDuration());
  job.daemon.Advance(absl::Seconds(59));
  EXPECT_EQ(job.daemon.state(), "SOLVING");
  EXPECT_EQ(job.daemon.CountEvents("stuck"), 0);
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

// A job beside TestJob's, whose ranks say Hello and report one window.
void AddJobThatReports(CoreHarness& daemon, const std::string& name) {
  std::vector<FakeRank> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(rank);
    ranks.back().identity.job = name;
    ranks.back().session = daemon.Open();
    daemon.Say(ranks.back().session, ranks.back().Hello());
  }
  for (FakeRank& rank : ranks) {
    for (const wire::DownMessage& message : daemon.Take(rank.session)) rank.Receive(message);
    for (const wire::UpMessage& message : rank.outbox) daemon.Say(rank.session, message);
  }
  for (const FakeRank& rank : ranks) daemon.Say(rank.session, TestReport(0, 9));
}

TEST(TriggerTest, ASolveThatNeverBeginsIsGivenUpWithTheNamesOfTheJobsBeforeIt) {
  AskedJob job;
  job.daemon.solver_is_busy = true;
  AddJobThatReports(job.daemon, "other");
  ASSERT_EQ(job.daemon.num_solves(), 2);
  ASSERT_EQ(job.daemon.core().Job("other", job.daemon.now())->state(), v1::JOB_STATE_SOLVING);
  job.daemon.Advance(absl::Seconds(300));
  const v1::JobStatus other = *job.daemon.core().Job("other", job.daemon.now());
  EXPECT_EQ(other.state(), v1::JOB_STATE_IDLE);
  EXPECT_EQ(other.last_reason(), "kept, the solver did not begin within 5m; it works for train");
}

TEST(TriggerTest, ASolveThatNobodyWaitsForAnyMoreIsCancelledOnce) {
  const auto cancelled_by = [](const std::function<void(TestJob&)>& end) {
    TestJob job;
    job.ConnectAll();
    job.Report(0, 9);
    const int64_t id = job.daemon.pending_solve()->solve_id;
    end(job);
    EXPECT_NE(job.daemon.state(), "SOLVING");
    return job.daemon.cancelled_solves() ==
           std::vector<std::pair<std::string, int64_t>>{{kJob, id}};
  };
  EXPECT_TRUE(cancelled_by([](TestJob& job) { job.daemon.Advance(absl::Seconds(61)); }));
  EXPECT_TRUE(cancelled_by([](TestJob& job) { ASSERT_TRUE(job.daemon.Ask(Pause{}).ok()); }));
  EXPECT_TRUE(
      cancelled_by([](TestJob& job) { job.daemon.Handle(DrainRequested{absl::Seconds(5)}); }));
  EXPECT_TRUE(cancelled_by([](TestJob& job) {
    job.Disconnect(1);
    job.daemon.Advance(absl::Seconds(11));  // its grace: the run is lost
  }));
}

TEST(TriggerTest, SettingsThatChangeWhileThePolicyComputesHoldForItsAnswer) {
  AskedJob job;
  ASSERT_EQ(job.daemon.state(), "SOLVING");
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"min_gain", 0.9}}}).ok());
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  EXPECT_EQ(job.daemon.state(), "SOLVING");  // asked again
  EXPECT_EQ(job.daemon.num_solves(), 2);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  EXPECT_EQ(job.daemon.state(), "IDLE");  // the gain is below the new one
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_KEPT);
}

// A load under which the exchange is bad.
wire::LoadReport Reversed() {
  wire::LoadReport report = TestReport(20, 29);
  report.counts = LoadMatrix::Constant(4, 6, 10);
  report.counts.col(0) = 1000;
  report.counts.col(2) = 1000;
  return report;
}

// A job whose ranks are PREPARED for layers 0 and 1 of four that are exchanged. While the chunk is
// in flight it reports a load under which the exchange is bad.
struct SwitchingJob : PreparedJob {
  SwitchingJob() : PreparedJob(Exchanged({0, 1, 2, 3})) { SayAll(Reversed()); }
  v1::Plan Plan(int64_t number) const { return *daemon.core().OnePlan(kJob, number); }
};

TEST(SwitchingTest, ADecisionStartsFromWhatTheChunksLeadTo) {
  SwitchingJob job;
  EXPECT_EQ(job.daemon.state(), "VOTING");
  ASSERT_EQ(job.daemon.num_solves(), 2);
  EXPECT_EQ(*job.daemon.pending_solve()->question->incumbent, Exchanged({0, 1, 2, 3}));

  ProposedJob preparing(Exchanged({0, 1, 2, 3}));
  preparing.SayAll(Reversed());
  EXPECT_EQ(preparing.daemon.num_solves(), 2);
}

TEST(SwitchingTest, ItReplacesTheChunksThatAreNotProposed) {
  SwitchingJob job;
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_EQ(job.daemon.state(), "VOTING") << "the chunk in flight stays";
  EXPECT_THAT(job.Plan(2).reason(), HasSubstr("; replaces 1 chunk of decision 1"));
  ASSERT_TRUE(job.VoteAndDeliver(32));
  EXPECT_EQ(job.Plan(1).result(), v1::PLAN_RESULT_PARTIAL);
  EXPECT_EQ(job.Plan(1).chunks_committed(), 1);
  EXPECT_THAT(job.Plan(1).reason(), HasSubstr("; decision 2 replaced the rest"));
  const wire::Propose& next = job.ranks[1].proposals.back();
  EXPECT_EQ(next.decision, 2);
  EXPECT_EQ(next.base_version, 1);
  EXPECT_EQ(next.num_chunks, 1);
  ASSERT_EQ(next.layers.size(), 2u) << "layers 2 and 3 never moved";
  EXPECT_EQ(next.layers.front().layer, LayerId{0});
  ASSERT_TRUE(job.VoteAndDeliver(34));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.ranks[2].placement, Exchanged({}));
  const v1::Plan plan = job.Plan(2);
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_COMMITTED);
  EXPECT_EQ(plan.base_version(), 1);
  EXPECT_EQ(plan.transfers(), 4);
  EXPECT_EQ(job.daemon.plans().at(1).replaced_by(), 2u) << "stored";
}

TEST(SwitchingTest, ADecisionThatReturnsToTheChunkInFlightDropsTheRest) {
  SwitchingJob job;
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1})));
  EXPECT_THAT(job.Plan(2).reason(), HasSubstr("; kept, nothing else is to be moved"));
  ASSERT_TRUE(job.VoteAndDeliver(32));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.ranks[0].placement, Exchanged({0, 1}));
  EXPECT_EQ(job.Plan(1).result(), v1::PLAN_RESULT_PARTIAL);
}

TEST(SwitchingTest, ADecisionToKeepLetsTheChunksGoOn) {
  SwitchingJob job;
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  EXPECT_EQ(job.Plan(2).result(), v1::PLAN_RESULT_KEPT);
  ASSERT_TRUE(job.VoteAndDeliver(32));
  ASSERT_TRUE(job.VoteAndDeliver(34));
  EXPECT_EQ(job.ranks[0].placement, Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.Plan(1).result(), v1::PLAN_RESULT_COMMITTED);
}

TEST(SwitchingTest, AnAnswerBehindTheLastChunkIsProposedAtOnce) {
  SwitchingJob job;
  ASSERT_TRUE(job.VoteAndDeliver(32));
  ASSERT_TRUE(job.VoteAndDeliver(34));
  EXPECT_EQ(job.daemon.state(), "SOLVING");
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_EQ(job.daemon.state(), "PREPARING");
}

TEST(SwitchingTest, AnAnswerBesideTheLastChunkFollowsIt) {
  SwitchingJob job;
  ASSERT_TRUE(job.VoteAndDeliver(32));
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_THAT(job.Plan(2).reason(), Not(HasSubstr("replaces")));
  job.CommitAll(34);
  EXPECT_EQ(job.ranks[0].placement, Exchanged({}));
  EXPECT_EQ(job.Plan(1).result(), v1::PLAN_RESULT_COMMITTED);
  EXPECT_EQ(job.Plan(2).base_version(), 2);
}

TEST(SwitchingTest, ADroppedChunkEndsTheSolveAndBothDecisions) {
  SwitchingJob solving;
  ASSERT_TRUE(solving.VoteAndDeliver(32, /*transfer_works=*/false));
  EXPECT_EQ(solving.daemon.state(), "IDLE");
  EXPECT_EQ(solving.daemon.cancelled_solves().size(), 1u);

  SwitchingJob answered;
  ASSERT_TRUE(answered.daemon.AnswerSolve(Exchanged({})));
  ASSERT_TRUE(answered.VoteAndDeliver(32, /*transfer_works=*/false));
  EXPECT_EQ(answered.daemon.state(), "IDLE");
  EXPECT_EQ(answered.Plan(1).result(), v1::PLAN_RESULT_WITHDRAWN);
  EXPECT_EQ(answered.Plan(2).result(), v1::PLAN_RESULT_WITHDRAWN);
}

TEST(SwitchingTest, APauseEndsTheSolveAndNoChunkFollows) {
  SwitchingJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  EXPECT_EQ(job.Plan(2).result(), v1::PLAN_RESULT_KEPT);
  EXPECT_EQ(job.daemon.cancelled_solves().size(), 1u);
  ASSERT_TRUE(job.VoteAndDeliver(32));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.ranks[0].placement, Exchanged({0, 1}));
}

TEST(SwitchingTest, ASolveThatIsLateLetsTheChunksGoOn) {
  SwitchingJob job;
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_EQ(job.Plan(2).result(), v1::PLAN_RESULT_FAILED);
  job.CommitAll(32);
  EXPECT_EQ(job.ranks[0].placement, Exchanged({0, 1, 2, 3}));
}

TEST(SwitchingTest, TheSolveEndsWithChunksThatAreNotProposedAnyMore) {
  SwitchingJob old;  // decided on the load up to step 9, a decision every 20 steps
  ASSERT_TRUE(old.VoteAndDeliver(9 + kMostIntervals * 20 + 1));
  EXPECT_EQ(old.daemon.state(), "IDLE");
  EXPECT_EQ(old.daemon.cancelled_solves().size(), 1u);

  SwitchingJob unstored;
  unstored.daemon.store_works = false;
  ASSERT_TRUE(unstored.VoteAndDeliver(32));
  EXPECT_EQ(unstored.daemon.state(), "IDLE");
  EXPECT_EQ(unstored.daemon.cancelled_solves().size(), 1u);

  SwitchingJob drained;
  drained.daemon.Handle(DrainRequested{});
  EXPECT_EQ(drained.Plan(2).result(), v1::PLAN_RESULT_KEPT);
  EXPECT_EQ(drained.daemon.cancelled_solves().size(), 1u);
}

TEST(SwitchingTest, ADecisionToKeepMakesTheChunksThoseOfItsLoad) {
  SwitchingJob job;
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  ASSERT_TRUE(job.VoteAndDeliver(9 + kMostIntervals * 20 + 1));
  EXPECT_EQ(job.daemon.state(), "VOTING");
}

TEST(SwitchingTest, NewSettingsAskAgain) {
  SwitchingJob job;
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"min_gain", 0.5}}}).ok());
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_EQ(job.daemon.num_solves(), 3);
}

TEST(SwitchingTest, WhatAnOperatorAskedForIsNotReplaced) {
  AskedJob job;
  job.daemon.AnswerSolve(Exchanged({}));
  ASSERT_TRUE(job.daemon.Ask(Rebalance{.force = true}).ok());
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  job.SayAll(Reversed());
  EXPECT_EQ(job.daemon.num_solves(), 2);
}

TEST(SwitchingTest, ReplacedDecisionsAreNoWithdrawals) {
  PreparedJob job(Exchanged({0, 1, 2, 3}));
  int64_t scale = 1;  // the newest load outweighs the others
  for (int64_t i = 1; i <= 5; ++i, scale *= 30) {
    wire::LoadReport report = i % 2 == 1 ? Reversed() : TestReport(0, 9);
    report.first_step = 20 * i;
    report.last_step = report.first_step + 9;
    report.counts *= i % 2 == 1 ? scale : 10 * scale;
    job.SayAll(report);
    ASSERT_TRUE(job.daemon.AnswerSolve(i % 2 == 1 ? Exchanged({}) : Exchanged({0, 1, 2, 3})));
    EXPECT_EQ(job.daemon.core().OnePlan(kJob, i)->replaced_by(), i == 1 ? 0 : i + 1);
  }
  job.daemon.AdvanceSeconds(20);
  EXPECT_EQ(job.daemon.View().stalled(), "");
}

TEST(TriggerTest, WithoutASettingAutoDecidesAtEachWindowAndOthersEveryFiftySteps) {
  Config config = TestConfig();
  config.settings.every_steps = 0;
  AskedJob job(config);
  EXPECT_EQ(job.daemon.View().policy().every_steps(), 50);
  job.daemon.AnswerSolve(Exchanged({}));
  for (int64_t step = 10; step < 50; step += 10) job.Report(step, step + 9);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  job.Report(50, 59);
  EXPECT_EQ(job.daemon.num_solves(), 2);
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"name", "auto"}}}).ok());
  EXPECT_EQ(job.daemon.View().policy().every_steps(), 10);
}

TEST(SwitchingTest, ARollbackIsNotReplaced) {
  PreparedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  ASSERT_TRUE(job.daemon.Ask(Rollback{0}).ok());
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  job.Deliver();
  job.Report(40, 49);
  EXPECT_EQ(job.daemon.num_solves(), 1);
}

}  // namespace
}  // namespace eplb::core
