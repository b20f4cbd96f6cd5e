#include <gmock/gmock.h>

#include <google/protobuf/text_format.h>

#include "base/json_value.h"
#include "client/cli/commands.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using GetTest = ExampleJobTest;

TEST_F(GetTest, RanksTellWhatTheyRunAndAnswered) {
  v1::RankStatus& rank = *daemon_.status.mutable_jobs(0)->add_ranks();
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "rank: 1 away_seconds: 12.5 answer: RANK_ANSWER_PREPARED prepared_version: 4 step: 123456 "
      "dropped_steps: 150 running_version: 345 answer_seconds: 1.25 pause_seconds: 0.125 "
      "transport { name: 'nccl' nccl_version: '2.28.9' device: 3 "
      "settings { name: 'NCCL_IB_TC' value: '106' } }",
      &rank));
  const std::string output = TextOf(RunGetRanks({.query = daemon_.Options()}, kPlain));
  EXPECT_THAT(output, Says("connected", "away 12", "prepared", "nccl"));
  EXPECT_TRUE(FitsInto(output, 80)) << output;
  EXPECT_THAT(output, HasSubstr("  pause  "));
  const Output json = RunGetRanks({.query = daemon_.Options(Format::kJson), .job = kJob}, kPlain);
  EXPECT_TRUE(wire::ParseJson(json.out).ok());
  EXPECT_THAT(json.out, Says(R"("away_seconds":12.5)",
                             R"("transport":{"name":"nccl","fallback_reason":"","device":3,)",
                             R"("settings":{"NCCL_IB_TC":"106"})", R"("transport":null,)"))
      << "of a client that does not say";
}

TEST_F(GetTest, ARankThatHasEndedIsNotAway) {
  v1::RankStatus& rank = *daemon_.status.mutable_jobs(0)->mutable_ranks(0);
  rank.set_connected(false);
  rank.set_away_seconds(12.5);
  const auto table = [this] { return RunGetRanks({.query = daemon_.Options()}, kPlain).out; };
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
  EXPECT_THAT(RunGetRanks({.query = daemon_.Options(Format::kJson)}, kPlain).out,
              HasSubstr(R"("state":"away")"));
}

v1::Plan ExamplePlan(uint64_t number, v1::PlanResult result) {
  v1::Plan plan;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "unix_micros: 1795000000123000 policy: 'balanced' first_version: 10 num_chunks: 2 "
      "decided_first_step: 200 decided_last_step: 399 balancedness_before: 0.712 transfers: 516 "
      "balancedness_predicted: 0.981 prediction_error: 0.03 received_bytes: 7400000 "
      "pause_seconds: 0.058 reason: 'the predicted peak falls by 27 %'",
      &plan));
  plan.set_plan(number);
  plan.set_result(result);
  plan.set_last_version(result == v1::PLAN_RESULT_COMMITTED ? 11 : 10);
  plan.set_chunks_committed(result == v1::PLAN_RESULT_COMMITTED ? 2 : 1);
  return plan;
}

TEST_F(GetTest, PlansTellTheirEndAndTheReasonsOfTheNewest) {
  daemon_.plans = {ExamplePlan(8, v1::PLAN_RESULT_PARTIAL),
                   ExamplePlan(7, v1::PLAN_RESULT_COMMITTED)};
  const std::string output = TextOf(RunGetPlans({.query = daemon_.Options(), .limit = 20}, kPlain));
  EXPECT_THAT(output, Says("partial 1/2", "committed ", "plan 8: the predicted peak"));
  EXPECT_TRUE(FitsInto(output, 80)) << output;
  const Output one = RunGetPlans({.query = daemon_.Options(Format::kJson), .limit = 1}, kPlain);
  EXPECT_THAT(one.out, Says(R"("plan":8)", R"("time":"2026-11-18T11:06:40.123Z")"));
  EXPECT_THAT(one.out, Not(HasSubstr(R"("plan":7)")));
}

TEST_F(GetTest, OnePlanIsATableOfItsTimesAJsonOrATrace) {
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
    return RunGetPlan({.query = daemon_.Options(format), .plan = number}, kPlain);
  };
  const std::string table = TextOf(run(Format::kTable));
  EXPECT_THAT(
      table,
      Says("\nwindow             11:06:39.000  1.0 s  reports of steps 200..399\n",
           "\nsolve              -                 -  balanced\n",
           "\nchunk 1/2          11:06:40.123  4.0 s  version 10, 3 layers, committed\n",
           "\n  prepare          11:06:40.123  1.5 s  the slowest: rank 5\n",
           "\n  vote and switch  11:06:41.623  2.5 s  the longest pause: rank 3, 58.0 ms\n"));
  EXPECT_TRUE(FitsInto(table, 80)) << table;
  const Output json = run(Format::kJson);
  EXPECT_THAT(json.out, Says(R"("plan":{"plan":8,)", R"("prepared_unix_micros":1795000001623000)"));
  EXPECT_THAT(run(Format::kTrace).out, HasSubstr(R"("traceEvents":[)"));
  EXPECT_EQ(run(Format::kTrace, 9).exit_code, kNotFound);
}

TEST_F(GetTest, NothingDecidedIsSaid) {
  const Output output = RunGetPlans({.query = daemon_.Options()}, kPlain);
  EXPECT_EQ(output.out, "nothing has been decided for job train yet\n");
}

TEST_F(GetTest, EventsComeNewestFirstWithWhoChangedWhat) {
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
  const Output output = RunGetEvents({.query = daemon_.Options()}, kPlain);
  EXPECT_THAT(output.out, StartsWith("9  1970-01-01T00:00:00.000Z  policy_set  v0  by alice?\n"));
  EXPECT_THAT(output.out, Says("8  1970-01-01T00:00:00.000Z  committed  v0\n",
                               "  min_gain 0.05 -> min_gain 0.1\n"));
  const Output newer = RunGetEvents({.query = daemon_.Options(Format::kJson), .after = 8}, kPlain);
  EXPECT_THAT(newer.out, HasSubstr(R"("sequence":9)"));
  EXPECT_THAT(newer.out, Not(HasSubstr(R"("sequence":8)")));
}

v1::Window WindowAt(uint64_t number, uint64_t first_step) {
  v1::Window window;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "run_id: 'run-1' versions: 3 coverage: 1 tokens: 1000 balancedness: 0.5 "
      "balancedness_static: 0.125 balancedness_without_eplb: 0.25",
      &window));
  window.set_window(number);
  window.set_first_step(first_step);
  window.set_last_step(first_step + 9);
  return window;
}

class GetWindowsTest : public ExampleJobTest {
 protected:
  Output Run(Format format = Format::kTable) {
    return RunGetWindows({.query = daemon_.Options(format)}, kPlain);
  }
};

TEST_F(GetWindowsTest, StepsWithoutAWindowAreALineAndAnEmptyColumn) {
  daemon_.windows = {WindowAt(1, 0), WindowAt(2, 10), WindowAt(5, 70)};
  daemon_.windows[1].clear_balancedness();
  const Output output = Run();
  EXPECT_EQ(output.exit_code, kOk);
  EXPECT_EQ(output.out,
            " steps   measured  without EPLB  versions  coverage  tokens\n"
            "  0..9      0.500         0.250         3   100.0 %   1,000\n"
            "10..19          -         0.250         3   100.0 %   1,000\n"
            "20..69  no window             -         -         -       -\n"
            "70..79      0.500         0.250         3   100.0 %   1,000\n"
            "\n"
            "Measured balancedness from left to right; full height is 1\n\n\n"
            "#  #\n"
            "#  #\n");
}

TEST_F(GetWindowsTest, AnotherRunThatBeginsLaterIsNoGap) {
  daemon_.windows = {WindowAt(1, 0), WindowAt(2, 100)};
  daemon_.windows[1].set_run_id("run-2");
  EXPECT_THAT(Run().out, Not(HasSubstr("no window")));
}

TEST_F(GetWindowsTest, JsonHasTheKeysOfTheApiAndNullForWhatIsNotKnown) {
  daemon_.windows = {WindowAt(1, 0)};
  EXPECT_THAT(Run(Format::kJson).out,
              Says(R"({"job":"train","windows":[{"window":1,)", R"("step_seconds":null)"));
}

TEST_F(GetWindowsTest, NoWindowIsSaid) {
  EXPECT_EQ(Run().out, "job train has no complete window yet\n");
}

}  // namespace

}  // namespace eplb::cli
