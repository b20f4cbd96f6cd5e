#include "server/core/solution.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "placement/evaluate.h"

namespace eplb::core {

namespace {

// Four experts on two GPUs; the first two, on GPU 0, are hot.
Solve RequestTo(const std::string& policy) {
  LoadMatrix counts(1, 4);
  counts << 40, 30, 2, 1;
  const Topology topology =
      Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2}).value();
  return {.job = "job",
          .solve_id = 4,
          .policy_name = policy,
          .load = std::make_shared<Load>(*Load::FromCounts(counts)),
          .previous = std::make_shared<Placement>(Placement::Static(topology))};
}

TEST(SolutionTest, TheHotExpertsEndOnDifferentGpus) {
  const absl::StatusOr<Placement> placement = SolveRequest(RequestTo("deepseek"));
  ASSERT_TRUE(placement.ok()) << placement.status();
  const Topology& topology = placement->topology();
  EXPECT_NE(topology.GpuOf(placement->PrimaryOf({0}, {0})),
            topology.GpuOf(placement->PrimaryOf({0}, {1})));
}

TEST(SolutionTest, ThePolicyGetsSpeedsAndHierarchy) {
  Solve request = RequestTo("balanced");
  const int32_t num_gpus = request.previous->topology().num_gpus();
  std::vector<double> speeds(static_cast<size_t>(num_gpus), 1);
  speeds[0] = 0.1;
  request.speeds = std::make_shared<const GpuSpeeds>(*GpuSpeeds::Make(num_gpus, speeds, {}));
  const absl::StatusOr<Placement> slow = SolveRequest(request);
  ASSERT_TRUE(slow.ok()) << slow.status();
  const Evaluation tokens = Evaluate(*request.load, *slow).value();
  EXPECT_LT(tokens.gpu_loads(0, 0), tokens.gpu_loads.row(0).mean());
  request.hierarchy = Hierarchy::kSoft;
  EXPECT_TRUE(SolveRequest(request).ok()) << "one node: every placement keeps to it";
  request.policy_name = "deepseek";
  EXPECT_EQ(SolveRequest(request).status().message(),
            "policy deepseek does not take hierarchy soft");
}

TEST(SolutionTest, ABalancedLoadMovesNothingAfterAligning) {
  Solve request = RequestTo("deepseek");
  LoadMatrix even(1, 4);
  even << 4, 1, 2, 3;  // both GPUs have 5 as they are
  request.load = std::make_shared<Load>(*Load::FromCounts(even));
  EXPECT_EQ(DigestOf(*SolveRequest(request)), DigestOf(*request.previous));
}

// Experts 0 and 1 share a GPU and are hot by turns: what evens out their sum would put both tokens
// of a window on one GPU.
TEST(SolutionTest, ThePolicyScoresOnTheWindowsAndNotOnTheirSumAlone) {
  LoadMatrix first(1, 4), second(1, 4);
  first << 1000, 0, 600, 0;
  second << 0, 1000, 0, 600;
  Solve request = RequestTo("incremental");
  request.load = std::make_shared<Load>(*Load::FromCounts(first + second));
  EXPECT_NE(DigestOf(*SolveRequest(request)), DigestOf(*request.previous));
  request.recent = {std::make_shared<Load>(*Load::FromCounts(first)),
                    std::make_shared<Load>(*Load::FromCounts(second))};
  EXPECT_EQ(DigestOf(*SolveRequest(request)), DigestOf(*request.previous));
}

TEST(SolutionTest, AnUnknownPolicyAndAMissingInputAreErrors) {
  EXPECT_EQ(SolveRequest(RequestTo("magic")).status().code(), absl::StatusCode::kInvalidArgument);
  Solve request = RequestTo("deepseek");
  request.load = nullptr;
  EXPECT_EQ(SolveRequest(request).status().code(), absl::StatusCode::kInternal);
}

TEST(SolutionTest, APolicyThatChoosesAnswersWithItsStateAndThePlacementInForceUntilItDecides) {
  Solve request = RequestTo("auto");
  AutoQuestion question{.fresh = {{request.load, 10}}};
  question.windows_since_decision = 1;
  question.options.every = 8;
  request.choose = std::make_shared<const AutoQuestion>(question);
  const Solved waits = AnswerSolve(request);
  EXPECT_EQ(DigestOf(*waits.placement), DigestOf(*request.previous));
  ASSERT_NE(waits.chosen, nullptr);
  EXPECT_FALSE(waits.chosen->answer.has_value());
  question.now = true;
  request.choose = std::make_shared<const AutoQuestion>(question);
  const Solved decides = AnswerSolve(request);
  EXPECT_TRUE(decides.chosen->answer.has_value());
  EXPECT_NE(DigestOf(*decides.placement), DigestOf(*request.previous));
  EXPECT_EQ(decides.solve_id, 4);
}

TEST(SolutionTest, TheErrorOfABackTestIsTheAnswers) {
  Solve request = RequestTo("auto");
  LoadMatrix other(2, 4);
  other.setOnes();
  request.choose = std::make_shared<const AutoQuestion>(
      AutoQuestion{.fresh = {{std::make_shared<Load>(*Load::FromCounts(other)), 10}}});
  EXPECT_EQ(AnswerSolve(request).placement.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace

}  // namespace eplb::core
