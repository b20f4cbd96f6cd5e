#include "client/cli/daemon/get_plans.h"

#include <gmock/gmock.h>

#include "tests/client/cli/daemon/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Plan ExamplePlan(uint64_t number, const std::string& result) {
  v1::Plan plan;
  plan.set_plan(number);
  plan.set_unix_micros(1'795'000'000'123'000);
  plan.set_policy("balanced");
  plan.set_result(result);
  plan.set_first_version(10);
  plan.set_last_version(result == "committed" ? 11 : 10);
  plan.set_num_chunks(2);
  plan.set_chunks_committed(result == "committed" ? 2 : 1);
  plan.set_decided_first_step(200);
  plan.set_decided_last_step(399);
  plan.set_balancedness_before(0.712);
  plan.set_balancedness_predicted(0.981);
  plan.set_transfers(516);
  plan.set_received_bytes(7'400'000);
  plan.set_pause_seconds(0.058);
  plan.set_reason("the predicted peak falls by 27 %");
  return plan;
}

class GetPlansTest : public ::testing::Test {
 protected:
  GetPlansTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(GetPlansTest, PlansTellTheirEndAndTheReasonsOfTheNewest) {
  daemon_.plans = {ExamplePlan(8, "partial"), ExamplePlan(7, "committed")};
  const Output output = RunGetPlans({.query = daemon_.Options(), .job = "", .limit = 20}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"200..399", "partial 1/2", "committed ", "0.981", "7.4 MB", "58.0 ms",
                           "11-18 11:06", "plan 8: the predicted peak"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  const Terminal wide{.width = 160, .colour = false, .unicode = false};
  const std::string all = RunGetPlans({.query = daemon_.Options(), .job = ""}, wide).out;
  for (const char* word : {"10..11", "0.712", "516", "2026-11-18 11:06:40"}) {
    EXPECT_THAT(all, HasSubstr(word));
  }
  const Output one =
      RunGetPlans({.query = daemon_.Options(Format::kJson), .job = "", .limit = 1}, kPlain);
  EXPECT_THAT(one.out, HasSubstr(R"("plan":8)"));
  EXPECT_THAT(one.out, Not(HasSubstr(R"("plan":7)")));
  EXPECT_THAT(one.out, HasSubstr(R"("time":"2026-11-18T11:06:40.123Z")"));
}

TEST_F(GetPlansTest, NewestFirstAsEventsAndJson) {
  daemon_.plans = {ExamplePlan(8, "partial"), ExamplePlan(7, "committed")};
  const std::string text = RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain).out;
  EXPECT_LT(text.find("\n   8  "), text.find("\n   7  ")) << text;
}

TEST_F(GetPlansTest, WhatFollowedAPredictionIsSeenBesideIt) {
  v1::Plan plan = ExamplePlan(8, "committed");
  daemon_.plans = {plan};
  const auto text = [this] {
    return RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain).out;
  };
  EXPECT_THAT(text(), HasSubstr("predicted  seen  "));
  EXPECT_THAT(text(), HasSubstr("    0.981     -  "));
  plan.set_balancedness_seen(0.8125);
  plan.set_seen_first_step(450);
  plan.set_seen_last_step(499);
  daemon_.plans = {plan};
  EXPECT_THAT(text(), HasSubstr("    0.981  0.812  "));
  EXPECT_THAT(
      RunGetPlans({.query = daemon_.Options(Format::kJson), .job = ""}, kPlain).out,
      HasSubstr(R"("balancedness_seen":0.8125,"seen_first_step":450,"seen_last_step":499)"));
}

TEST_F(GetPlansTest, WhoAskedForADecisionIsNamed) {
  v1::Plan plan = ExamplePlan(8, "committed");
  plan.set_asked_by("alice@head (claimed)");
  daemon_.plans = {plan};
  EXPECT_THAT(RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain).out,
              HasSubstr("plan 8 (asked for by alice@head (claimed)): the predicted"));
}

TEST_F(GetPlansTest, WhatNobodyMeasuredIsNoZero) {
  v1::Plan plan = ExamplePlan(8, "committed");
  plan.clear_received_bytes();
  plan.clear_pause_seconds();
  daemon_.plans = {plan};
  const Terminal wide{.width = 160, .colour = false, .unicode = false};
  const Output table = RunGetPlans({.query = daemon_.Options(), .job = ""}, wide);
  EXPECT_THAT(table.out, Not(HasSubstr("0.0 MB")));
  EXPECT_THAT(table.out, HasSubstr("516         -         -"));
  const Output json = RunGetPlans({.query = daemon_.Options(Format::kJson), .job = ""}, wide);
  EXPECT_THAT(json.out, HasSubstr(R"("received_bytes":null)"));
  EXPECT_THAT(json.out, HasSubstr(R"("pause_seconds":null)"));
}

TEST_F(GetPlansTest, NothingDecidedIsSaid) {
  const Output output = RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(output.out, "nothing has been decided for job train yet\n");
}

}  // namespace
}  // namespace eplb::cli
