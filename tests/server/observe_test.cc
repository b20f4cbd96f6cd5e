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

TEST(ObserveTest, DecisionsThatKeepThePlacementDoNotHideTheLastCommit) {
  std::vector<core::Plan> plans = {PlanAt(1, 16), PlanAt(2, 77)};
  plans.back().chunks_committed = 1;
  plans.back().balancedness_predicted = 0.75;
  plans.back().balancedness_seen = 0.5;
  for (int64_t number = 3; number < 203; ++number) plans.push_back(PlanAt(number, 0));
  const std::unique_ptr<Runner> runner = RunnerWith(plans);
  const core::JobView job = *runner->Job("train");
  EXPECT_EQ(job.last_switched_step, 77);
  EXPECT_EQ(job.balancedness_predicted, 0.75);
  EXPECT_EQ(job.balancedness_seen, 0.5);
}

TEST(ObserveTest, AJobThatNeverSwitchedHasNoLastCommit) {
  std::vector<core::Plan> plans;
  for (int64_t number = 1; number < 30; ++number) plans.push_back(PlanAt(number, 0));
  const std::unique_ptr<Runner> kept = RunnerWith(plans);
  EXPECT_EQ(kept->Job("train")->last_switched_step, 0);
  EXPECT_FALSE(kept->Job("train")->balancedness_predicted.has_value());
  const std::unique_ptr<Runner> none = RunnerWith({});
  EXPECT_EQ(none->Job("train")->last_switched_step, 0);
}

}  // namespace
}  // namespace eplb
