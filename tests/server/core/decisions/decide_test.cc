#include "server/core/decisions/decide.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/decisions/question.h"
#include "server/core/solution.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

Load HotPair() { return Load::FromCounts(TestReport(0, 9).counts).value(); }

CandidateInput AskAbout(const Load& load, const Placement& incumbent, const Placement& candidate) {
  return {.load = load,
          .num_steps = 10,
          .first_step = 0,
          .last_step = 9,
          .incumbent = incumbent,
          .candidate = candidate,
          .min_gain = 0.05,
          .staging_rows = 2,
          .limits = {.layers_per_chunk = 2},
          .migration = {.weight_bytes = 8, .state_bytes = 16}};
}

// Current placement once all chunks are committed.
Placement AfterAll(Placement in_force, std::vector<Chunk> chunks) {
  for (Chunk& chunk : chunks) {
    EXPECT_TRUE(Complete(in_force, chunk).ok());
    in_force = *chunk.after;
  }
  return in_force;
}

TEST(EvaluateCandidateTest, AGainAboveTheThresholdIsProposedWithItsFiguresInTheSentence) {
  const Load load = HotPair();
  const Placement incumbent = Exchanged({});
  const Placement candidate = Exchanged({0, 1, 2, 3});
  const CandidateDecision decision =
      EvaluateCandidate(AskAbout(load, incumbent, candidate)).value();
  ASSERT_EQ(decision.chunks.size(), 2u);
  EXPECT_EQ(AfterAll(incumbent, decision.chunks), candidate);
  // GPU loads 200, 20, 20 become 110, 110, 20 in each layer: 1 - 110 / 200, 80 / 200, 80 / 110.
  EXPECT_EQ(decision.reason,
            "steps 0..9: peak GPU load of these steps falls 45.0 % (balancedness computed 0.400 -> "
            "0.727), 4 layers in 2 chunks, 8 transfers");
  EXPECT_EQ(decision.left_out, "");
}

TEST(EvaluateCandidateTest, WithSpeedsAGpusLoadIsItsTokensDividedBySpeed) {
  const Load load = HotPair();
  const Placement incumbent = Exchanged({});
  const Placement candidate = Exchanged({0, 1, 2, 3});
  CandidateInput question = AskAbout(load, incumbent, candidate);
  const GpuSpeeds speeds = GpuSpeeds::Make(3, std::vector<double>{1, 0.5, 1}, {}).value();
  question.speeds = &speeds;
  // Loads 200, 40, 20 would become 110, 220, 20: what is even in tokens keeps the slow GPU longest.
  const CandidateDecision decision = EvaluateCandidate(question).value();
  EXPECT_TRUE(decision.chunks.empty());
  EXPECT_NEAR(decision.balancedness_before, 260 / 3.0 / 200, 1e-12);
  EXPECT_NEAR(decision.prediction.balancedness, 350 / 3.0 / 220, 1e-12);
  EXPECT_NEAR(decision.peak_fall, 1 - 220 / 200.0, 1e-12);
}

TEST(EvaluateCandidateTest, AGainBelowTheThresholdIsKeptWithTheReason) {
  const Load load = HotPair();
  const Placement incumbent = Exchanged({});
  const Placement candidate = Exchanged({0, 1, 2, 3});
  CandidateInput question = AskAbout(load, incumbent, candidate);
  question.min_gain = 0.5;
  const CandidateDecision decision = EvaluateCandidate(question).value();
  EXPECT_TRUE(decision.chunks.empty());
  EXPECT_EQ(decision.reason,
            "steps 0..9: kept, peak GPU load of these steps would fall 45.0 % (balancedness "
            "computed 0.400 -> 0.727), less than min_gain, 50.0 %");
}

TEST(EvaluateCandidateTest, NothingIsProposedThatGainsNothingEvenWithoutAThreshold) {
  const Load load = Load::FromCounts(LoadMatrix::Constant(4, 6, 5)).value();
  const Placement incumbent = Exchanged({});
  const Placement candidate = Exchanged({0});
  CandidateInput question = AskAbout(load, incumbent, candidate);
  question.min_gain = 0;
  EXPECT_TRUE(EvaluateCandidate(question).value().chunks.empty());
}

TEST(EvaluateCandidateTest, TheSamePlacementIsKept) {
  const Load load = HotPair();
  const Placement incumbent = Exchanged({1});
  const CandidateDecision decision =
      EvaluateCandidate(AskAbout(load, incumbent, incumbent)).value();
  EXPECT_TRUE(decision.chunks.empty());
  EXPECT_NE(decision.reason.find("changes nothing"), std::string::npos);
}

TEST(EvaluateCandidateTest, AnIdleLoadIsKept) {
  const Load load = Load::FromCounts(LoadMatrix::Zero(4, 6)).value();
  const Placement incumbent = Exchanged({});
  const Placement candidate = Exchanged({0, 1});
  EXPECT_TRUE(EvaluateCandidate(AskAbout(load, incumbent, candidate)).value().chunks.empty());
}

TEST(EvaluateCandidateTest, LayersThatNeedMoreStagingThanTheRanksHaveAreLeftOutByName) {
  const Load load = HotPair();
  const Placement incumbent = Exchanged({});
  // Layer 0: one expert into two GPUs each; layer 2: both slots of GPUs 0 and 1 change.
  IndexMatrix slots = Exchanged({0}).physical_to_logical_map();
  slots.row(2) << 2, 3, 0, 1, 4, 5;
  const Placement candidate = Placement::FromSlots(incumbent.topology(), slots).value();
  CandidateInput question = AskAbout(load, incumbent, candidate);
  question.staging_rows = 1;
  const CandidateDecision decision = EvaluateCandidate(question).value();
  ASSERT_EQ(decision.chunks.size(), 1u);
  EXPECT_EQ(AfterAll(incumbent, decision.chunks), Exchanged({0}));
  EXPECT_EQ(*decision.chunks[0].after, Exchanged({0}));
  EXPECT_EQ(decision.left_out,
            "steps 0..9: layer 2 left out, 2 rows of staging on one GPU are needed and the ranks "
            "have 1");
}

TEST(EvaluateCandidateTest, WithPricesAGainMustEarnItsMigration) {
  const Load load = HotPair();
  const Placement incumbent = Exchanged({});
  const Placement candidate = Exchanged({0, 1, 2, 3});
  LearnedGate gate{.horizon_steps = 40, .windows = 4, .shown = {.realized = 1}};
  CandidateInput question = AskAbout(load, incumbent, candidate);
  question.migration = {.weight_bytes = 1'000'000};
  question.costs = {.token_seconds = 1e-6, .intra_bytes_per_s = 1e9};
  question.learned = &gate;
  EXPECT_TRUE(EvaluateCandidate(question).value().chunks.empty());
  gate.horizon_steps = 10'000;
  const CandidateDecision decision = EvaluateCandidate(question).value();
  EXPECT_EQ(decision.chunks.size(), 2u);
  // 4 layers * 90 tokens * 1 us a window; 4 layers * 1 MB into GPU 0 at 1 GB/s.
  EXPECT_NE(decision.reason.find("rebalance saves 0.36 s over 10000 steps"), std::string::npos);
  EXPECT_NE(decision.reason.find("4 ms of migration"), std::string::npos);
  EXPECT_DOUBLE_EQ(decision.migration_seconds.value(), 0.004);
  EXPECT_DOUBLE_EQ(decision.net_gain_seconds.value(), 0.36 - 0.004);
}

// The job and its solver, whose windows keep their load.
TEST(TriggerTest, WithPricesAFixedPolicyMovesOnceItsBackTestHasProvedTheGain) {
  Config config = TestConfig();
  config.costs.token_seconds = 1e-5;
  config.costs.stall_seconds = 1e-2;  // 2.7 windows' gain
  TestJob job(config);
  job.ConnectAll();
  for (int64_t first = 0; first < 100 && job.daemon.CountEvents("proposed") == 0; first += 10) {
    job.Report(first, first + 9);
    if (job.daemon.state() != "SOLVING") continue;
    job.daemon.Handle(AnswerSolve(*job.daemon.pending_solve()));
    if (first == 0) {
      EXPECT_NE(job.daemon.LastReason("kept").find("4.0 times the cost"), std::string::npos);
    }
  }
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 1);
  EXPECT_NE(job.daemon.LastReason("proposed").find("rebalance saves"), std::string::npos);
  EXPECT_TRUE(job.daemon.View().candidates.empty()) << "there is nothing to choose";
}

TEST(EvaluateCandidateTest, ALoadOfAnotherShapeIsAnError) {
  const Load load = Load::FromCounts(LoadMatrix::Zero(4, 5)).value();
  const Placement incumbent = Exchanged({});
  EXPECT_EQ(EvaluateCandidate(AskAbout(load, incumbent, Exchanged({0}))).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TriggerTest, TheFirstCompleteWindowIsDecidedOnAndTheNextOnlyAfterPolicyEverySteps) {
  TestJob job;
  job.ConnectAll();
  job.Report(0, 9);
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
  TestJob job(config);
  job.ConnectAll();
  const std::string frozen = "step 20: nothing is decided in the frozen steps 0:19";
  EXPECT_EQ(job.daemon.View().waiting_for, frozen);
  job.Report(0, 9);
  job.Report(10, 19);
  EXPECT_EQ(job.daemon.num_solves(), 0);
  EXPECT_EQ(job.daemon.View().waiting_for, frozen);
  EXPECT_EQ(job.daemon.CountEvents("freeze_over"), 0);
  job.Report(20, 29);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  EXPECT_EQ(job.daemon.LastReason("freeze_over"),
            "step 29: the frozen steps 0:19 are over, decisions are made again");
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_EQ(job.daemon.View().waiting_for, "");
  for (int64_t first = 30; first < 80; first += 10) job.Report(first, first + 9);
  EXPECT_EQ(job.daemon.CountEvents("freeze_over"), 1);
}

TEST(TriggerTest, NothingIsDecidedWhileARankIsAway) {
  TestJob job;
  job.ConnectAll();
  for (int32_t rank = 0; rank < 3; ++rank) {
    if (rank == 2) job.Disconnect(0);
    job.daemon.Say(job.ranks[rank].session, TestReport(0, 9));
  }
  EXPECT_EQ(job.daemon.View().last_window_last_step, 9);
  EXPECT_EQ(job.daemon.num_solves(), 0);
  job.Connect(0);
  job.Report(10, 19);
  EXPECT_EQ(job.daemon.num_solves(), 1);
}

TEST(TriggerTest, AFailingPolicyIsKeptWithItsMessage) {
  TestJob job;
  job.ConnectAll();
  job.Report(0, 9);
  job.daemon.AnswerSolve(absl::InvalidArgumentError("6 slots refused"));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_NE(job.daemon.LastReason("kept").find("6 slots refused"), std::string::npos);
}

TEST(TriggerTest, ASolverThatNeverAnswersMeetsItsDeadlineAndItsLateAnswerIsIgnored) {
  TestJob job;
  job.ConnectAll();
  job.Report(0, 9);
  job.daemon.Advance(absl::Seconds(59));
  EXPECT_EQ(job.daemon.View().waiting_for, "the solver");
  job.daemon.Advance(absl::Seconds(2));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_NE(job.daemon.LastReason("kept").find("within 1m"), std::string::npos);
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 0);
}

TEST(TriggerTest, TheSolversDeadlineCountsFromWhenItBegins) {
  TestJob job;
  job.ConnectAll();
  job.daemon.solver_is_busy = true;
  job.Report(0, 9);
  job.daemon.Advance(absl::Seconds(200));
  EXPECT_EQ(job.daemon.View().waiting_for, "the solver, which works for other jobs");
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
  TestJob job;
  job.ConnectAll();
  job.Report(0, 9);
  job.daemon.solver_is_busy = true;
  AddJobThatReports(job.daemon, "other");
  ASSERT_EQ(job.daemon.num_solves(), 2);
  ASSERT_EQ(job.daemon.core().Job("other", job.daemon.now())->state, JobState::kSolving);
  job.daemon.Advance(absl::Seconds(300));
  const JobView other = *job.daemon.core().Job("other", job.daemon.now());
  EXPECT_EQ(other.state, JobState::kIdle);
  EXPECT_EQ(other.last_reason, "kept, the solver did not begin within 5m; it works for train");
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

TEST(TriggerTest, AnAnsweredSolveIsNotCancelled) {
  TestJob job;
  job.ConnectAll();
  job.Report(0, 9);
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(job.daemon.state(), "PREPARING");
  EXPECT_TRUE(job.daemon.cancelled_solves().empty());
}

TEST(TriggerTest, SettingsThatChangeWhileThePolicyComputesHoldForItsAnswer) {
  TestJob job;
  job.ConnectAll();
  job.Report(0, 9);
  ASSERT_EQ(job.daemon.state(), "SOLVING");
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{.min_gain = 0.9}}).ok());
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  EXPECT_EQ(job.daemon.state(), "SOLVING");  // asked again
  EXPECT_EQ(job.daemon.num_solves(), 2);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  EXPECT_EQ(job.daemon.state(), "IDLE");  // the gain is below the new one
  EXPECT_EQ(job.daemon.core().Plans(kJob, 1)->front().result, PlanResult::kKept);
}

TEST(TriggerTest, ASolutionOfAnotherShapeIsAFailure) {
  TestJob job;
  job.ConnectAll();
  job.Report(0, 9);
  TopologyOptions shape = TestShape();
  shape.num_slots = 9;
  job.daemon.AnswerSolve(Placement::Static(Topology::Make(shape).value()));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_NE(job.daemon.LastReason("kept").find("another shape"), std::string::npos);
}

}  // namespace
}  // namespace eplb::core
