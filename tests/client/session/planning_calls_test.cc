#include "client/session/planning_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "tests/client/session/planning_server.h"
#include "tests/client/session/scripted_daemon.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two experts in three slots on one GPU.
PlanQuestion Question() {
  const Topology topology =
      Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 3}).value();
  return {.job = "chat-1x2",
          .run_id = "run",
          .replaces_run_id = "before",
          .engine = "vLLM 0.33.0",
          .number = 3,
          .expert_bytes = 44,
          .load = Load::FromCounts(LoadMatrix{{7, int64_t{1} << 40}}).value(),
          .current = Placement::Static(topology)};
}

absl::StatusOr<PlanAnswer> Ask(const std::string& endpoint,
                               absl::Duration timeout = absl::Seconds(20)) {
  return AskPlan({.endpoint = endpoint, .timeout = timeout}, Question());
}

std::string GoneEndpoint() { return PlanningServer(AnswerOf({})).endpoint(); }

template <class Number>
std::vector<Number> NumbersOf(const std::string& bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

TEST(PlanningCallsTest, TheQuestionArrivesAndItsAnswerIsAPlacement) {
  PlanningServer server(AnswerOf({0, 1, 1}, 9));
  const absl::StatusOr<PlanAnswer> answer = Ask(server.endpoint());
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_TRUE(answer->placement.has_value());
  EXPECT_TRUE((answer->placement->physical_to_logical_map() == IndexMatrix{{0, 1, 1}}).all());
  EXPECT_EQ(answer->version, 9);
  EXPECT_EQ(answer->reason, "a reason");
  EXPECT_EQ(answer->endpoint, server.endpoint());
  const v1::PlanRequest asked = server.asked().at(0);
  EXPECT_EQ(asked.job(), "chat-1x2");
  EXPECT_EQ(asked.run_id(), "run");
  EXPECT_EQ(asked.replaces_run_id(), "before");
  EXPECT_EQ(asked.engine(), "vLLM 0.33.0");
  EXPECT_EQ(asked.question(), 3);
  EXPECT_EQ(asked.expert_bytes(), 44);
  EXPECT_EQ(asked.shape().num_slots(), 3);
  EXPECT_THAT(NumbersOf<uint64_t>(asked.load()), ElementsAre(7, uint64_t{1} << 40));
  EXPECT_THAT(NumbersOf<int32_t>(asked.physical_to_logical_map()), ElementsAre(0, 1, 0));
}

TEST(PlanningCallsTest, NoPlacementKeepsTheCurrentOne) {
  PlanningServer server(AnswerOf({}, 4));
  const absl::StatusOr<PlanAnswer> answer = Ask(server.endpoint());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->placement.has_value());
  EXPECT_EQ(answer->version, 4);
}

TEST(PlanningCallsTest, AnOutcomeIsReportedToTheDaemonThatAnswered) {
  PlanningServer server(AnswerOf({0, 1, 1}));
  ASSERT_TRUE(SettlePlan({.endpoint = server.endpoint(), .timeout = absl::Seconds(20)},
                         {.job = "chat-1x2", .run_id = "run", .version = 9, .reason = "rank 2"})
                  .ok());
  const v1::SettleRequest settled = server.settled().at(0);
  EXPECT_EQ(settled.job(), "chat-1x2");
  EXPECT_EQ(settled.version(), 9);
  EXPECT_FALSE(settled.taken());
  EXPECT_EQ(settled.reason(), "rank 2");
}

TEST(PlanningCallsTest, TheNextDaemonIsAskedWhereOneCannotAnswer) {
  PlanningServer standby(RefusalOf(grpc::StatusCode::UNAVAILABLE, "NOT_LEADER"));
  PlanningServer frozen(NoAnswer());
  PlanningServer leader(AnswerOf({0, 1, 1}));
  const std::string list = absl::StrCat(GoneEndpoint(), ",", standby.endpoint(), ",",
                                        frozen.endpoint(), ",", leader.endpoint());
  const absl::StatusOr<PlanAnswer> answer = Ask(list, absl::Seconds(6));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->endpoint, leader.endpoint());
}

TEST(PlanningCallsTest, ARefusalIsNotAskedElsewhere) {
  PlanningServer first(RefusalOf(grpc::StatusCode::FAILED_PRECONDITION, "another shape"));
  PlanningServer second(AnswerOf({0, 1, 1}));
  const absl::Status status = Ask(absl::StrCat(first.endpoint(), ",", second.endpoint())).status();
  EXPECT_EQ(status, absl::FailedPreconditionError(
                        absl::StrCat("eplbd at ", first.endpoint(), ": another shape")));
  EXPECT_THAT(second.asked(), IsEmpty());
}

TEST(PlanningCallsTest, ADaemonWithoutTheCallIsCalledOld) {
  const ScriptedDaemon old({});
  EXPECT_EQ(Ask(old.endpoint()).status(),
            absl::UnimplementedError(absl::StrCat("eplbd at ", old.endpoint(),
                                                  ": this daemon is too old to plan for engines")));
}

TEST(PlanningCallsTest, TheDeadlineBoundsTheWholeList) {
  PlanningServer frozen(NoAnswer());
  const std::string gone = GoneEndpoint();
  const absl::Time begin = absl::Now();
  const absl::Status status =
      Ask(absl::StrCat(gone, ",", frozen.endpoint()), absl::Seconds(2)).status();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(6));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("eplbd at ", gone, ": connection refused; eplbd at ")));
}

TEST(PlanningCallsTest, AnAnswerThatDoesNotFitIsAnErrorOfTheDaemon) {
  for (const auto& [slots, expected] :
       {std::pair{std::vector<int32_t>{0, 1}, "has 8 bytes, expected 12"},
        {{0, 0, 0}, "expert 1 "},
        {{0, 1, 2}, "slot 2 holds expert 2"},
        {{0, 1, -1}, "has empty slots"}}) {
    PlanningServer server(AnswerOf(slots));
    const absl::Status status = Ask(server.endpoint()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected));
    EXPECT_THAT(std::string(status.message()), HasSubstr(server.endpoint()));
  }
}

TEST(PlanningCallsTest, WhatCannotBeAskedIsNamed) {
  PlanQuestion question = Question();
  question.job = "a job";
  EXPECT_THAT(
      std::string(
          AskPlan({.endpoint = "a:1", .timeout = absl::Seconds(1)}, question).status().message()),
      HasSubstr("job"));
  EXPECT_THAT(std::string(Ask("nowhere").status().message()), HasSubstr("endpoint is"));
  EXPECT_THAT(std::string(Ask("a:1", absl::ZeroDuration()).status().message()),
              HasSubstr("timeout: 0, expected above 0"));
  const absl::Status none =
      SettlePlan({.endpoint = "", .timeout = absl::Seconds(1)}, {.job = "job", .run_id = "run"});
  EXPECT_THAT(std::string(none.message()), HasSubstr("endpoint is"));
}

}  // namespace
}  // namespace eplb
