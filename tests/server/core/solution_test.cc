#include "server/core/solution.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "placement/digest.h"
#include "placement/evaluate.h"
#include "tests/server/core/core_harness.h"
#include "tests/support/messages.h"

namespace eplb::core {
namespace {

SeenWindow Tokens(std::vector<int64_t> row) {
  LoadMatrix counts(1, std::ssize(row));
  for (Eigen::Index i = 0; i < counts.cols(); ++i) counts(0, i) = row[static_cast<size_t>(i)];
  return {std::make_shared<const Load>(*Load::FromCounts(counts)), 10};
}

// Four experts on two GPUs. The first two, on GPU 0, are hot.
DecisionQuestion QuestionTo(const std::string& policy) {
  const Topology topology =
      Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2}).value();
  return {.planner = {.windows = {Tokens({40, 30, 2, 1})},
                      .num_fresh = 1,
                      .options = {.candidates = {{policy}}}},
          .incumbent = std::make_shared<Placement>(Placement::Static(topology)),
          .staging_rows = 4};
}

Solved Answer(const DecisionQuestion& question) {
  return AnswerSolve(
      {.job = "job", .solve_id = 4, .question = std::make_shared<DecisionQuestion>(question)});
}

// REQUIRES: a decision is due.
Placement PlacementFor(const DecisionQuestion& question) {
  return (**Answer(question).planned).answer->placement;
}

TEST(SolutionTest, TheHotExpertsEndOnDifferentGpus) {
  const Solved solved = Answer(QuestionTo("deepseek"));
  ASSERT_TRUE(solved.planned.ok()) << solved.planned.status();
  EXPECT_EQ(solved.solve_id, 4);
  ASSERT_NE(solved.answer, nullptr);
  ASSERT_TRUE(solved.answer->decision.ok()) << solved.answer->decision.status();
  const Placement& placement = (*solved.planned)->answer->placement;
  const Topology& topology = placement.topology();
  EXPECT_NE(topology.GpuOf(placement.PrimaryOf({0}, {0})),
            topology.GpuOf(placement.PrimaryOf({0}, {1})));
}

TEST(SolutionTest, ThePolicyGetsSpeedsAndHierarchy) {
  DecisionQuestion question = QuestionTo("balanced");
  const std::vector<double> speeds = {0.1, 1};
  question.planner.speeds = std::make_shared<const GpuSpeeds>(*GpuSpeeds::Make(2, speeds, {}));
  const Placement slow = PlacementFor(question);
  const Evaluation tokens = Evaluate(*question.planner.windows[0].load, slow).value();
  EXPECT_LT(tokens.gpu_loads(0, 0), tokens.gpu_loads.row(0).mean());
  question.planner.options.policy.hierarchy = Hierarchy::kSoft;
  EXPECT_TRUE(Answer(question).planned.ok()) << "one node: every placement keeps to it";
  question.planner.options.candidates = {{"deepseek"}};
  EXPECT_EQ(Answer(question).planned.status().message(),
            "policy deepseek does not take hierarchy soft");
}

TEST(SolutionTest, ABalancedLoadMovesNothingAfterAligning) {
  DecisionQuestion question = QuestionTo("deepseek");
  question.planner.windows = {Tokens({4, 1, 2, 3})};  // both GPUs have 5 as they are
  EXPECT_EQ(DigestOf(PlacementFor(question)), DigestOf(*question.incumbent));
}

// Experts 0 and 1 share a GPU and are hot by turns: what evens out their sum would put both tokens
// of a window on one GPU.
TEST(SolutionTest, ThePolicyScoresOnTheWindowsAndNotOnTheirSumAlone) {
  DecisionQuestion question = QuestionTo("incremental");
  question.planner.windows = {Tokens({1000, 1000, 600, 600})};
  EXPECT_NE(DigestOf(PlacementFor(question)), DigestOf(*question.incumbent));
  question.planner.windows = {Tokens({1000, 0, 600, 0}), Tokens({0, 1000, 0, 600})};
  question.planner.options.candidates[0].estimate.windows = 2;
  EXPECT_EQ(DigestOf(PlacementFor(question)), DigestOf(*question.incumbent));
}

TEST(SolutionTest, APolicyThatChoosesKeepsItsStateUntilItDecides) {
  DecisionQuestion question = QuestionTo("");
  question.planner.options = {.every = 8};
  question.planner.windows_since_decision = 1;
  const Solved waits = Answer(question);
  ASSERT_TRUE(waits.planned.ok());
  EXPECT_EQ((*waits.planned)->state->backtest.num_windows(), 1);
  EXPECT_FALSE((*waits.planned)->answer.has_value());
  EXPECT_EQ(waits.answer, nullptr);
  question.planner.now = true;
  EXPECT_NE(DigestOf(PlacementFor(question)), DigestOf(*question.incumbent));
}

TEST(SolutionTest, AnErrorOfThePolicyOrOfTheBackTestIsTheAnswers) {
  const auto code = [](const DecisionQuestion& question) {
    const Solved solved = Answer(question);
    EXPECT_EQ(solved.answer, nullptr);
    return solved.planned.status().code();
  };
  EXPECT_EQ(code(QuestionTo("magic")), absl::StatusCode::kInvalidArgument);
  DecisionQuestion question = QuestionTo("");
  question.planner.options = {};
  question.planner.windows = {Tokens({1, 1, 1})};
  EXPECT_EQ(code(question), absl::StatusCode::kInvalidArgument);
}

// Returns the question to the solver once windows 0 to `newest` are complete.
std::shared_ptr<const DecisionQuestion> AskAfter(TestJob& job, int64_t newest) {
  job.ConnectAll();
  for (int64_t window = 0; window <= newest; ++window) {
    job.Report(10 * window, 10 * window + 9);
    if (window < newest) job.daemon.AnswerSolve(Exchanged({}));
  }
  return job.daemon.pending_solve()->question;
}

// Answer of a planner that proposes `placement` on the newest windows of the question.
PlannerAnswer Proposing(const DecisionQuestion& question, Placement placement) {
  return {ExpectLoad({}, question.planner.windows).value(), std::move(placement), std::nullopt, {}};
}

Config EveryWindow() {
  Config config = TestConfig();
  config.settings.every_steps = 10;
  return config;
}

TEST(DecideTest, ADecisionGoesByTheQuestionWhateverTheJobDoesMeanwhile) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 0);
  const DecisionAnswer before = Decide(*question, Proposing(*question, Exchanged({0, 1, 2, 3})));
  ASSERT_TRUE(before.decision.ok());
  EXPECT_EQ(before.decision->chunks.size(), 2);
  job.Report(10, 19);
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"min_gain", 0.9}, {"layers_per_chunk", 1}}}).ok());
  job.Disconnect(1);
  const DecisionAnswer after = Decide(*question, Proposing(*question, Exchanged({0, 1, 2, 3})));
  EXPECT_EQ(after.decision->reason, before.decision->reason);
  EXPECT_EQ(after.decision->chunks.size(), 2);
  EXPECT_EQ(after.first_step, 0);
}

TEST(DecideTest, ASolutionOfAnotherShapeIsRefused) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 0);
  const Topology other =
      Topology::Make({.num_layers = 4, .num_experts = 6, .num_slots = 6, .num_gpus = 2}).value();
  EXPECT_TRUE(absl::IsInvalidArgument(
      Decide(*question, Proposing(*question, Placement::Static(other))).decision.status()));
}

TEST(DecideTest, ADecisionGoesByTheWindowsOfThePlannersAnswer) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 2);
  PlannerAnswer newest = Proposing(*question, Exchanged({0}));
  EXPECT_EQ(Decide(*question, newest).first_step, 20);
  EXPECT_FALSE(Decide(*question, newest).decision->chunks.empty());
  const Load even = Load::FromCounts(LoadMatrix::Constant(4, 6, 5)).value();
  newest.expected = {.load = even, .num_steps = 20, .num_windows = 2, .recent = {even, even}};
  const DecisionAnswer answer = Decide(*question, newest);
  EXPECT_EQ(answer.first_step, 10);  // start of the two newest windows
  EXPECT_GT(answer.measured_balancedness, 0);
  ASSERT_TRUE(answer.decision.ok());
  EXPECT_TRUE(answer.decision->chunks.empty()) << "an even load has nothing to gain";
}

// Load of the job in which two experts are hot in every layer.
Load HotExperts(int32_t one, int32_t other) {
  LoadMatrix counts = LoadMatrix::Constant(4, 6, 10);
  counts.col(one) = 100;
  counts.col(other) = 100;
  return *Load::FromCounts(std::move(counts));
}

// Answer of a planner that proposes Exchanged({0, 1}) for two loads. Experts 0 and 1 share a GPU
// before, experts 0 and 2 afterwards.
PlannerAnswer ProposingForScenarios(const DecisionQuestion& question) {
  PlannerAnswer answer = Proposing(question, Exchanged({0, 1}));
  answer.expected.scenarios = {{.load = HotExperts(0, 1), .weight = 3, .name = "steps 0..9"},
                               {.load = HotExperts(0, 2)}};
  return answer;
}

TEST(DecideTest, ADecisionForSeveralLoadsHasTheBalancednessUnderEach) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 0);
  const v1::Plan figures = Decide(*question, ProposingForScenarios(*question)).decision->scenarios;
  // One GPU of three has both hot experts, or each of two has one of them.
  constexpr double kTogether = 80.0 / 200;
  constexpr double kApart = 80.0 / 110;
  ASSERT_EQ(figures.scenarios_size(), 2);
  const v1::ScenarioFigures& first = figures.scenarios(0);
  EXPECT_EQ(first.load(), "steps 0..9");
  EXPECT_EQ(first.weight(), 3);
  EXPECT_NEAR(first.balancedness_in_force().mean(), kTogether, 1e-12);
  EXPECT_NEAR(first.balancedness().mean(), (kTogether + kApart) / 2, 1e-12) << "2 layers of 4";
  EXPECT_NEAR(first.balancedness().min(), kTogether, 1e-12);
  EXPECT_EQ(figures.scenarios(1).load(), "typical load 2") << "it has no name";
  EXPECT_NEAR(figures.scenarios(1).balancedness_in_force().mean(), kApart, 1e-12);
  EXPECT_NEAR(figures.scenarios(1).balancedness().mean(), (kTogether + kApart) / 2, 1e-12);
  const v1::ObjectiveFigures& objective = figures.objective();
  EXPECT_EQ(objective.name(), "mean");
  const double before = (3 / kTogether + 1 / kApart) / 4;
  const double moved = (3 / kApart + 1 / kTogether) / 4;
  EXPECT_NEAR(objective.mean_in_force(), before, 1e-12);
  EXPECT_NEAR(objective.mean(), (before + moved) / 2, 1e-12);
  EXPECT_NEAR(objective.mixtures_at_least_in_force(), kTogether, 1e-12);
  EXPECT_NEAR(objective.mixtures_at_least(), kTogether, 1e-12);
}

TEST(DecideTest, ScenariosThatDoNotFitTheJobAreAnErrorOfTheDecision) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 0);
  PlannerAnswer answer = ProposingForScenarios(*question);
  answer.expected.scenarios.front().weight = 0;
  EXPECT_EQ(Decide(*question, answer).decision.status().message(),
            "scenario 0 has the weight 0, expected 1e-9..1e9");
}

TEST(DecideTest, ThePlanKeepsTheFiguresOfItsScenarios) {
  TestJob job(EveryWindow());
  AskAfter(job, 0);
  const Solve asked = *job.daemon.pending_solve();
  job.daemon.Handle(
      Solution(asked, PlannerOutcome{.answer = ProposingForScenarios(*asked.question)}));
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_PROPOSED) << plan.reason();
  EXPECT_EQ(plan.scenarios_size(), 2);
  EXPECT_TRUE(plan.has_objective());
  EXPECT_EQ(job.daemon.plans().at(1), plan) << "what the store has";
  EXPECT_EQ(job.daemon.View().newest_plan().scenarios_size(), 0)
      << "all jobs are asked for at once";
  EXPECT_FALSE(job.daemon.View().newest_plan().has_objective());
}

}  // namespace
}  // namespace eplb::core
