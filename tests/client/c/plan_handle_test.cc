#include "client/c/plan_handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include <Eigen/Core>

namespace eplb::c {
namespace {

using ::testing::HasSubstr;

eplb_plan_options FourExpertsOnTwoGpus() {
  eplb_plan_options options = DefaultPlanOptions();
  options.num_layers = 1;
  options.num_experts = 4;
  options.num_slots = 4;
  options.num_gpus = 2;
  return options;
}

Load LoadOf(std::array<int64_t, 4> counts) {
  return Load::FromCounts(Eigen::Map<LoadMatrix>(counts.data(), 1, 4)).value();
}

TEST(PlanHandleTest, DefaultsAreRead) {
  const eplb_plan_options given = FourExpertsOnTwoGpus();
  const auto read = ReadPlanOptions(&given);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->max_moves_per_gpu, -1);
  EXPECT_EQ(read->num_slots, 4);
  EXPECT_EQ(ReadPlanOptions(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlanHandleTest, HeavyExpertsAreParted) {
  const auto plan = SolvePlan(FourExpertsOnTwoGpus(), LoadOf({9, 9, 1, 1}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE((*plan)->evaluation.has_value());
  const Placement& placement = (*plan)->placement;
  const LayerId layer{0};
  EXPECT_NE(placement.topology().GpuOf(placement.PrimaryOf(layer, ExpertId{0})),
            placement.topology().GpuOf(placement.PrimaryOf(layer, ExpertId{1})));
}

TEST(PlanHandleTest, ExpertsKeepTheirSlotsOfTheGpuThatTheyStayOn) {
  const std::array<int64_t, 4> before = {3, 0, 2, 1};  // no other pairs are as even
  eplb_plan_options options = FourExpertsOnTwoGpus();
  options.previous = before.data();
  const auto plan = SolvePlan(options, LoadOf({8, 6, 3, 1}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int32_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ((*plan)->placement.ExpertIn(LayerId{0}, SlotId{slot}).value,
              before[static_cast<size_t>(slot)]);
  }
}

TEST(PlanHandleTest, WhatDeepSeekAssertsIsAnError) {
  eplb_rebalance_options options = {};
  options.struct_size = sizeof(options);
  options.num_layers = 1;
  options.num_experts = 4;
  options.num_replicas = 5;
  options.num_groups = options.num_nodes = 1;
  options.num_gpus = 2;
  const std::vector<float> weight = {1, 2, 3, 4};
  const absl::Status status = Rebalance(&options, weight.data()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("5"));
}

}  // namespace
}  // namespace eplb::c
