#include "server/core/decisions/question.h"

#include <gtest/gtest.h>

#include <memory>
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

Config EveryWindow() {
  Config config = TestConfig();
  config.settings.every_steps = 10;
  return config;
}

TEST(QuestionTest, ADecisionGoesByTheQuestionWhateverTheJobDoesMeanwhile) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 0);
  const DecisionAnswer before = Decide(*question, Exchanged({0, 1, 2, 3}), nullptr);
  ASSERT_TRUE(before.decision.ok());
  EXPECT_EQ(before.decision->chunks.size(), 2);
  job.Report(10, 19);
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{.min_gain = 0.9, .layers_per_chunk = 1}}).ok());
  job.Disconnect(1);
  const DecisionAnswer after = Decide(*question, Exchanged({0, 1, 2, 3}), nullptr);
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
      Decide(*question, Placement::Static(other), nullptr).decision.status()));
}

TEST(QuestionTest, TheLoadOfABackTestTakesThePlaceOfTheQuestions) {
  TestJob job(EveryWindow());
  const std::shared_ptr<const DecisionQuestion> question = AskAfter(job, 2);
  EXPECT_EQ(question->first_step, 20);
  const Load even = Load::FromCounts(LoadMatrix::Constant(4, 6, 5)).value();
  const AutoAnswer chosen = {.expected = {.load = even, .num_steps = 20, .recent = {even, even}},
                             .placement = Exchanged({0}),
                             .gate = {},
                             .candidate = {}};
  const DecisionAnswer answer = Decide(*question, chosen.placement, &chosen);
  EXPECT_EQ(answer.first_step, 10);  // of the two newest windows
  EXPECT_GT(answer.measured_balancedness, 0);
  ASSERT_TRUE(answer.decision.ok());
  EXPECT_TRUE(answer.decision->chunks.empty()) << "an even load has nothing to gain";
  EXPECT_FALSE(Decide(*question, chosen.placement, nullptr).decision->chunks.empty());
}

}  // namespace
}  // namespace eplb::core
