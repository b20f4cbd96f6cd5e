#include "server/background/solver.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "tests/server/test_stream.h"

namespace eplb {
namespace {

core::Solve Request(const std::string& policy) {
  const Placement previous = Placement::Static(*Topology::Make(kSmallShape));
  return {.job = "job",
          .solve_id = 4,
          .policy_name = policy,
          .load = std::make_shared<Load>(*Load::FromCounts(ReportOf(0).counts)),
          .previous = std::make_shared<Placement>(previous)};
}

TEST(SolverTest, TheHotExpertsEndOnDifferentGpus) {
  const absl::StatusOr<Placement> placement = SolveAligned(Request("deepseek"));
  ASSERT_TRUE(placement.ok()) << placement.status();
  const Topology& topology = placement->topology();
  EXPECT_NE(topology.GpuOf(placement->PrimaryOf({0}, {0})),
            topology.GpuOf(placement->PrimaryOf({0}, {1})));
}

TEST(SolverTest, ABalancedLoadMovesNothingAfterAligning) {
  core::Solve request = Request("deepseek");
  LoadMatrix even(1, 4);
  even << 4, 1, 2, 3;  // both GPUs have 5 as they are
  request.load = std::make_shared<Load>(*Load::FromCounts(even));
  EXPECT_EQ(DigestOf(*SolveAligned(request)), DigestOf(*request.previous));
}

// Experts 0 and 1 share a GPU and are hot by turns: what evens out their sum would put both tokens
// of a window on one GPU.
TEST(SolverTest, ThePolicyScoresOnTheWindowsAndNotOnTheirSumAlone) {
  LoadMatrix first(1, 4), second(1, 4);
  first << 1000, 0, 600, 0;
  second << 0, 1000, 0, 600;
  core::Solve request = Request("incremental");
  request.load = std::make_shared<Load>(*Load::FromCounts(first + second));
  EXPECT_NE(DigestOf(*SolveAligned(request)), DigestOf(*request.previous));
  request.recent = {std::make_shared<Load>(*Load::FromCounts(first)),
                    std::make_shared<Load>(*Load::FromCounts(second))};
  EXPECT_EQ(DigestOf(*SolveAligned(request)), DigestOf(*request.previous));
}

TEST(SolverTest, AnUnknownPolicyAndAMissingInputAreErrors) {
  EXPECT_EQ(SolveAligned(Request("magic")).status().code(), absl::StatusCode::kInvalidArgument);
  core::Solve request = Request("deepseek");
  request.load = nullptr;
  EXPECT_EQ(SolveAligned(request).status().code(), absl::StatusCode::kInternal);
}

TEST(SolverTest, TheAnswerCarriesJobAndId) {
  std::promise<core::Solved> answer;
  Solver solver([&answer](core::Solved solved) { answer.set_value(std::move(solved)); });
  solver.Post(Request("deepseek"));
  std::future<core::Solved> future = answer.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  const core::Solved solved = future.get();
  EXPECT_EQ(solved.job, "job");
  EXPECT_EQ(solved.solve_id, 4);
  EXPECT_TRUE(solved.placement.ok());
  EXPECT_GE(solved.seconds, 0);
}

}  // namespace
}  // namespace eplb
