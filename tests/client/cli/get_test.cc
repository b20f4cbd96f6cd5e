#include "client/cli/get.h"

#include <gmock/gmock.h>

#include "base/json_value.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GetRanksTest : public ::testing::Test {
 protected:
  GetRanksTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(GetRanksTest, RanksTellWhatTheyRunAndAnswered) {
  v1::RankStatus& rank = *daemon_.status.mutable_jobs(0)->add_ranks();
  rank.set_rank(1);
  rank.set_away_seconds(12.5);
  rank.set_answer(v1::RANK_ANSWER_PREPARED);
  rank.set_prepared_version(4);
  rank.set_dropped_steps(150);
  rank.set_step(123'456);
  rank.set_running_version(345);
  rank.set_answer_seconds(1.25);
  rank.set_pause_seconds(0.125);
  v1::TransportInfo& transport = *rank.mutable_transport();
  transport.set_name("nccl");
  transport.set_nccl_version("2.28.9");
  transport.set_device(3);
  v1::TransportInfo::Setting& setting = *transport.add_settings();
  setting.set_name("NCCL_IB_TC");
  setting.set_value("106");
  const Output output = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"connected", "away 12", "prepared", "150", "nccl"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  EXPECT_THAT(output.out, HasSubstr("boundary"));  // an operator's pause is another thing
  const Output json = RunGetRanks({.query = daemon_.Options(Format::kJson), .job = kJob}, kPlain);
  EXPECT_TRUE(wire::ParseJson(json.out).ok());
  EXPECT_THAT(json.out, HasSubstr(R"("away_seconds":12.5)"));
  EXPECT_THAT(json.out,
              HasSubstr(R"("transport":{"name":"nccl","fallback_reason":"","device":3,)"));
  EXPECT_THAT(json.out, HasSubstr(R"("settings":{"NCCL_IB_TC":"106"})"));
  EXPECT_THAT(json.out, HasSubstr(R"("transport":null,)")) << "of a client that does not say";
}

TEST_F(GetRanksTest, ARankThatHasEndedIsNotAway) {
  v1::RankStatus& rank = *daemon_.status.mutable_jobs(0)->mutable_ranks(0);
  rank.set_connected(false);
  rank.set_away_seconds(12.5);
  const auto table = [this] {
    return RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain).out;
  };
  constexpr std::pair<v1::RankState, const char*> kEnds[] = {
      {v1::RANK_STATE_FINISHED, "  finished  "},
      {v1::RANK_STATE_FAILED, "  failed  "},
      {v1::RANK_STATE_LOST, "  lost  "},
      {v1::RANK_STATE_EXPECTED, "  expected  "}};
  for (const auto& [state, word] : kEnds) {
    rank.set_state(state);
    EXPECT_THAT(table(), HasSubstr(word));
    EXPECT_THAT(table(), Not(HasSubstr("away")));
  }
  rank.set_state(v1::RANK_STATE_AWAY);
  EXPECT_THAT(table(), HasSubstr("away 12.5 s"));
  EXPECT_THAT(RunGetRanks({.query = daemon_.Options(Format::kJson), .job = ""}, kPlain).out,
              HasSubstr(R"("state":"away")"));
}

using ::testing::HasSubstr;
using ::testing::Not;

v1::Plan ExamplePlan(uint64_t number, v1::PlanResult result) {
  v1::Plan plan;
  plan.set_plan(number);
  plan.set_unix_micros(1'795'000'000'123'000);
  plan.set_policy("balanced");
  plan.set_result(result);
  plan.set_first_version(10);
  plan.set_last_version(result == v1::PLAN_RESULT_COMMITTED ? 11 : 10);
  plan.set_num_chunks(2);
  plan.set_chunks_committed(result == v1::PLAN_RESULT_COMMITTED ? 2 : 1);
  plan.set_decided_first_step(200);
  plan.set_decided_last_step(399);
  plan.set_balancedness_before(0.712);
  plan.set_balancedness_predicted(0.981);
  plan.set_prediction_error(0.03);
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
  daemon_.plans = {ExamplePlan(8, v1::PLAN_RESULT_PARTIAL),
                   ExamplePlan(7, v1::PLAN_RESULT_COMMITTED)};
  const Output output = RunGetPlans({.query = daemon_.Options(), .job = "", .limit = 20}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"200..399", "partial 1/2", "committed ", "0.712", "0.981 +- 0.030",
                           "11-18 11:06", "plan 8: the predicted peak"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  const Terminal wide{.width = 160, .colour = false, .unicode = false};
  const std::string all = RunGetPlans({.query = daemon_.Options(), .job = ""}, wide).out;
  for (const char* word : {"10..11", "0.712", "516", "7.4 MB", "58.0 ms", "2026-11-18 11:06:40"}) {
    EXPECT_THAT(all, HasSubstr(word));
  }
  const Output one =
      RunGetPlans({.query = daemon_.Options(Format::kJson), .job = "", .limit = 1}, kPlain);
  EXPECT_THAT(one.out, HasSubstr(R"("plan":8)"));
  EXPECT_THAT(one.out, Not(HasSubstr(R"("plan":7)")));
  EXPECT_THAT(one.out, HasSubstr(R"("time":"2026-11-18T11:06:40.123Z")"));
}

TEST_F(GetPlansTest, OnePlanIsATableOfItsTimesAJsonOrATrace) {
  v1::Plan plan = ExamplePlan(8, v1::PLAN_RESULT_PARTIAL);
  plan.mutable_times()->set_window_began_unix_micros(1'794'999'999'000'000);
  plan.mutable_times()->set_window_complete_unix_micros(1'795'000'000'000'000);
  v1::ChunkTimes& chunk = *plan.mutable_times()->add_chunks();
  chunk.set_version(10);
  chunk.set_num_layers(3);
  chunk.set_proposed_unix_micros(plan.unix_micros());
  chunk.set_prepared_unix_micros(plan.unix_micros() + 1'500'000);
  chunk.set_ended_unix_micros(plan.unix_micros() + 4'000'000);
  chunk.set_committed(true);
  v1::ChunkRankTimes& slowest = *chunk.add_ranks();
  slowest.set_rank(5);
  slowest.set_prepared_unix_micros(chunk.prepared_unix_micros());
  chunk.set_longest_pause_rank(3);
  chunk.set_longest_pause_seconds(0.058);
  daemon_.plans = {plan};
  const auto run = [this](Format format, int64_t number = 8) {
    return RunGetPlan({.query = daemon_.Options(format), .job = "", .plan = number}, kPlain);
  };
  const Output table = run(Format::kTable);
  EXPECT_EQ(table.exit_code, kOk) << table.message;
  for (const char* row :
       {"\nwindow             11:06:39.000  1.0 s  reports of steps 200..399\n",
        "\nsolve              -                 -  balanced\n",
        "\nchunk 1/2          11:06:40.123  4.0 s  version 10, 3 layers, committed\n",
        "\n  prepare          11:06:40.123  1.5 s  the slowest: rank 5\n",
        "\n  vote and switch  11:06:41.623  2.5 s  the longest boundary: rank 3, 58.0 ms\n"}) {
    EXPECT_THAT(table.out, HasSubstr(row));
  }
  EXPECT_TRUE(FitsInto(table.out, 80)) << table.out;
  const Output json = run(Format::kJson);
  EXPECT_THAT(json.out, HasSubstr(R"("plan":{"plan":8,)"));
  EXPECT_THAT(json.out, HasSubstr(R"("prepared_unix_micros":1795000001623000)"));
  EXPECT_THAT(run(Format::kTrace).out, HasSubstr(R"("traceEvents":[)"));
  EXPECT_EQ(run(Format::kTrace, 9).exit_code, kNotFound);
}

TEST_F(GetPlansTest, NewestFirstAsEventsAndJson) {
  daemon_.plans = {ExamplePlan(8, v1::PLAN_RESULT_PARTIAL),
                   ExamplePlan(7, v1::PLAN_RESULT_COMMITTED)};
  const std::string text = RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain).out;
  EXPECT_LT(text.find("\n   8  "), text.find("\n   7  ")) << text;
}

TEST_F(GetPlansTest, WhatFollowedAPredictionIsSeenBesideIt) {
  v1::Plan plan = ExamplePlan(8, v1::PLAN_RESULT_COMMITTED);
  daemon_.plans = {plan};
  const auto text = [this] {
    return RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain).out;
  };
  EXPECT_THAT(text(), HasSubstr("measured       predicted  seen"));
  EXPECT_THAT(text(), HasSubstr("   0.712  0.981 +- 0.030     -"));
  plan.set_balancedness_seen(0.8125);
  plan.set_seen_first_step(450);
  plan.set_seen_last_step(499);
  daemon_.plans = {plan};
  EXPECT_THAT(text(), HasSubstr("   0.712  0.981 +- 0.030  0.812"));
  EXPECT_THAT(
      RunGetPlans({.query = daemon_.Options(Format::kJson), .job = ""}, kPlain).out,
      HasSubstr(R"("balancedness_seen":0.8125,"seen_first_step":450,"seen_last_step":499)"));
}

TEST_F(GetPlansTest, WhoAskedForADecisionIsNamed) {
  v1::Plan plan = ExamplePlan(8, v1::PLAN_RESULT_COMMITTED);
  plan.set_asked_by("alice@head (claimed)");
  daemon_.plans = {plan};
  EXPECT_THAT(RunGetPlans({.query = daemon_.Options(), .job = ""}, kPlain).out,
              HasSubstr("plan 8 (asked for by alice@head (claimed)): the predicted"));
}

TEST_F(GetPlansTest, WhatNobodyMeasuredIsNoZero) {
  v1::Plan plan = ExamplePlan(8, v1::PLAN_RESULT_COMMITTED);
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

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class GetEventsTest : public ::testing::Test {
 protected:
  GetEventsTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(GetEventsTest, EventsComeNewestFirstWithWhoChangedWhat) {
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
  EXPECT_THAT(output.out, StartsWith("9  1970-01-01T00:00:00.000Z  policy_set  v0  by alice?\n"));
  EXPECT_THAT(output.out, HasSubstr("8  1970-01-01T00:00:00.000Z  committed  v0\n"));
  EXPECT_THAT(output.out, HasSubstr("  min_gain 0.05 -> min_gain 0.1\n"));
  const Output newer =
      RunGetEvents({.query = daemon_.Options(Format::kJson), .job = "", .after = 8}, kPlain);
  EXPECT_THAT(newer.out, HasSubstr(R"("sequence":9)"));
  EXPECT_THAT(newer.out, Not(HasSubstr(R"("sequence":8)")));
}

}  // namespace

}  // namespace eplb::cli
