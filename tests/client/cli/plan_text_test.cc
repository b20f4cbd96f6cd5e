#include "client/cli/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanTextTest, AFigureWithoutEarlierPredictionsIsCalledComputed) {
  v1::Plan plan;
  plan.set_balancedness_predicted(0.893);
  EXPECT_THAT(PlanFigures(plan), HasSubstr("predicted 0.893 (computed)"));
  plan.set_prediction_evidence(0);
  EXPECT_THAT(PlanFigures(plan), HasSubstr("predicted 0.893 +- unknown"));
  plan.set_prediction_error(0);
  EXPECT_THAT(PlanFigures(plan), HasSubstr("predicted 0.893 +- 0.000"));
}

TEST(PlanTextTest, WhatWasSeenHasItsStepsOrIsNotSeenYet) {
  v1::Plan plan;
  EXPECT_THAT(PlanFigures(plan), Not(HasSubstr("seen"))) << "nothing was switched";
  plan.set_chunks_committed(1);
  EXPECT_THAT(PlanFigures(plan), HasSubstr("seen not yet on a whole window"));
  plan.set_balancedness_seen(0.872);
  plan.set_seen_first_step(40);
  plan.set_seen_last_step(59);
  EXPECT_THAT(PlanFigures(plan), HasSubstr("seen 0.872 on steps 40..59"));
}

}  // namespace
}  // namespace eplb::cli
