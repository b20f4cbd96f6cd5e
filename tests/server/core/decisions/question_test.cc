#include "server/core/decisions/question.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

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

TEST(QuestionTest, ADecisionGoesByTheQuestionWhateverTheJobDoesMeanwhile) {
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

TEST(QuestionTest, ASolutionOfAnotherShapeIsRefused) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 0);
  const Topology other =
      Topology::Make({.num_layers = 4, .num_experts = 6, .num_slots = 6, .num_gpus = 2}).value();
  EXPECT_TRUE(absl::IsInvalidArgument(
      Decide(*question, Proposing(*question, Placement::Static(other))).decision.status()));
}

TEST(QuestionTest, ADecisionGoesByTheWindowsOfThePlannersAnswer) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 2);
  PlannerAnswer newest = Proposing(*question, Exchanged({0}));
  EXPECT_EQ(Decide(*question, newest).first_step, 20);
  EXPECT_FALSE(Decide(*question, newest).decision->chunks.empty());
  const Load even = Load::FromCounts(LoadMatrix::Constant(4, 6, 5)).value();
  newest.expected = {.load = even, .num_steps = 20, .recent = {even, even}};
  const DecisionAnswer answer = Decide(*question, newest);
  EXPECT_EQ(answer.first_step, 10);  // start of the two newest windows
  EXPECT_GT(answer.measured_balancedness, 0);
  ASSERT_TRUE(answer.decision.ok());
  EXPECT_TRUE(answer.decision->chunks.empty()) << "an even load has nothing to gain";
}

}  // namespace
}  // namespace eplb::core
