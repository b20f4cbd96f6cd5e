#include "server/observe.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "server/runner/runner.h"
#include "server/store/store.h"

namespace eplb {
namespace {

// A runner that finds the job with these plans in its store.
std::unique_ptr<Runner> RunnerWith(const std::vector<core::Plan>& plans) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2});
  std::unique_ptr<Store> store = MakeMemoryStore();
  const core::StoredJob job{
      .job = "train", .version = 5, .next_version = 6, .placement = Placement::Static(topology)};
  EXPECT_TRUE(store->WriteJob(job).ok());
  for (const core::Plan& plan : plans) EXPECT_TRUE(store->WritePlan("train", plan).ok());
  return *Runner::Start({}, std::move(store));
}

core::Plan PlanAt(int64_t number, int64_t switched_step) {
  core::Plan plan{.plan = number};
  plan.result = switched_step > 0 ? core::PlanResult::kCommitted : core::PlanResult::kKept;
  plan.switched_step = switched_step;
  return plan;
}

TEST(FiguresOfTest, DecisionsThatKeepThePlacementDoNotHideTheLastCommit) {
  std::vector<core::Plan> plans = {PlanAt(1, 16), PlanAt(2, 77)};
  for (int64_t number = 3; number < 203; ++number) plans.push_back(PlanAt(number, 0));
  plans.back().balancedness_predicted = 0.75;
  const std::unique_ptr<Runner> runner = RunnerWith(plans);
  const JobFigures figures = FiguresOf(*runner, *runner->Job("train"));
  EXPECT_EQ(figures.last_commit_step, 77);
  EXPECT_EQ(figures.predicted_balancedness, 0.75);
}

TEST(FiguresOfTest, AJobThatNeverSwitchedHasNoLastCommit) {
  std::vector<core::Plan> plans;
  for (int64_t number = 1; number < 30; ++number) plans.push_back(PlanAt(number, 0));
  const std::unique_ptr<Runner> kept = RunnerWith(plans);
  EXPECT_FALSE(FiguresOf(*kept, *kept->Job("train")).last_commit_step.has_value());
  const std::unique_ptr<Runner> none = RunnerWith({});
  EXPECT_FALSE(FiguresOf(*none, *none->Job("train")).last_commit_step.has_value());
}

}  // namespace
}  // namespace eplb
