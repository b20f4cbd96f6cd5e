// get ranks, get plans and get events.
#include <gmock/gmock.h>

#include "client/cli/daemon/get_events.h"
#include "client/cli/daemon/get_plans.h"
#include "client/cli/daemon/get_ranks.h"
#include "proto/wire/json_value.h"
#include "tests/client/cli/daemon/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

class RecordsTest : public ::testing::Test {
 protected:
  RecordsTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(RecordsTest, RanksTellWhatTheyRunAndAnswered) {
  v1::RankStatus& rank = *daemon_.status.mutable_jobs(0)->add_ranks();
  rank.set_rank(1);
  rank.set_away_seconds(12.5);
  rank.set_answer("ready");
  rank.set_ready_version(4);
  rank.set_dropped_steps(150);
  const Output output = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"connected", "away 12", "ready", "150"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  const Output json = RunGetRanks({.query = daemon_.Options(Format::kJson), .job = kJob}, kPlain);
  EXPECT_TRUE(wire::ParseJson(json.out).ok());
  EXPECT_THAT(json.out, HasSubstr(R"("away_seconds":12.5)"));
}

TEST_F(RecordsTest, PlansTellTheirEndAndTheReasonsOfTheNewest) {
  daemon_.plans = {ExamplePlan(8, "partial"), ExamplePlan(7, "committed")};
  const Output output = RunGetPlans({.query = daemon_.Options(), .job = "", .limit = 20}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"200..399", "partial 1/2", "committed 2/2", "10..11", "0.712 -> 0.981",
                           "516", "plan 8: the predicted peak"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  const Terminal wide{.width = 160, .colour = false, .unicode = false};
  EXPECT_THAT(RunGetPlans({.query = daemon_.Options(), .job = ""}, wide).out, HasSubstr("7.4 MB"));
  const Output one =
      RunGetPlans({.query = daemon_.Options(Format::kJson), .job = "", .limit = 1}, kPlain);
  EXPECT_THAT(one.out, HasSubstr(R"("plan":8)"));
  EXPECT_THAT(one.out, Not(HasSubstr(R"("plan":7)")));
  EXPECT_THAT(one.out, HasSubstr(R"("time":"2026-11-18T11:06:40.123Z")"));
}

TEST_F(RecordsTest, NothingDecidedIsSaid) {
  const Output output = RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(output.out, "nothing has been decided for job train yet\n");
}

TEST_F(RecordsTest, EventsComeOldestFirstWithWhoChangedWhat) {
  v1::JobEvent change;
  change.set_sequence(9);
  change.set_name("policy_set");
  change.set_reason("too many small moves");
  change.set_actor("alice\x1b");
  change.set_before("min_gain 0.05");
  change.set_after("min_gain 0.1");
  v1::JobEvent older;
  older.set_sequence(8);
  older.set_name("committed");
  daemon_.events = {change, older};
  const Output output = RunGetEvents({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_THAT(output.out, StartsWith("8  1970-01-01T00:00:00.000Z  committed  v0\n"));
  EXPECT_THAT(output.out, HasSubstr("policy_set  v0  by alice?\n"));
  EXPECT_THAT(output.out, HasSubstr("  min_gain 0.05 -> min_gain 0.1\n"));
  const Output newer =
      RunGetEvents({.query = daemon_.Options(Format::kJson), .job = "", .after = 8}, kPlain);
  EXPECT_THAT(newer.out, HasSubstr(R"("sequence":9)"));
  EXPECT_THAT(newer.out, Not(HasSubstr(R"("sequence":8)")));
}

TEST_F(RecordsTest, WithoutJobTheOnlyOneIsMeantAndOfSeveralOneIsAskedFor) {
  daemon_.status.add_jobs()->set_job("other");
  const Output several = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(several.exit_code, kUsage);
  EXPECT_EQ(several.message, "--job is needed: the daemon knows train, other");
  daemon_.status.clear_jobs();
  const Output none = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(none.exit_code, kNotFound);
  EXPECT_EQ(none.message, "the daemon knows no job yet");
}

}  // namespace
}  // namespace eplb::cli
