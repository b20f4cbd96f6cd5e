#include "client/files/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>

#include "client/files/atomic_write.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

RunReport TwoDecisionsInThreeSwitches() {
  RunReport report;
  report.job = "demo";
  for (int64_t step = 0; step < 4; ++step) {
    report.steps.push_back({.step = step,
                            .version = step < 2 ? 0 : 1,
                            .balancedness = step < 2 ? 0.5 : 0.9,
                            .balancedness_static = 0.5,
                            .seconds = 0.1});
  }
  report.switches = {
      {.step = 1, .version = 1, .decided_first_step = 0, .decided_last_step = 0, .reason = "a"},
      {.step = 2, .version = 2, .decided_first_step = 0, .decided_last_step = 0, .reason = "a"},
      {.step = 3, .version = 3, .decided_first_step = 1, .decided_last_step = 2, .reason = "\xff"}};
  report.switches[1].bytes_moved = 100;
  report.switches[2].bytes_moved = 11;
  report.switches[0].pause_seconds = 0.25;
  return report;
}

TEST(RunReportTest, ChunksOfOneDecisionAreOneRebalance) {
  EXPECT_EQ(CountRebalances(TwoDecisionsInThreeSwitches().switches), 2);
  EXPECT_EQ(CountRebalances({}), 0);
}

TEST(RunReportTest, DecisionsOnTheSameStepsAreToldApartByTheirNumber) {
  RunReport report = TwoDecisionsInThreeSwitches();
  for (SwitchRecord& change : report.switches) {
    change.decided_first_step = 0;
    change.decided_last_step = 0;
    change.decision = change.step < 3 ? 7 : 8;
  }
  report.switches[2].policy = "rollback";
  const auto decisions = ByDecision(report.switches);
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[0].size(), 2u);
  EXPECT_EQ(decisions[1].front().step, 3);
  EXPECT_EQ(CountRebalances(report.switches), 1);  // an operator's rollback is none
}

TEST(RunReportTest, MeansAfterTheFirstSwitchLeaveEarlierStepsOut) {
  const auto json = nlohmann::json::parse(RunReportToJson(TwoDecisionsInThreeSwitches()));
  EXPECT_EQ(json["format"], "eplb.run.v1");
  EXPECT_DOUBLE_EQ(json["summary"]["balancedness_mean"].get<double>(), 0.7);
  EXPECT_DOUBLE_EQ(json["summary"]["balancedness_mean_after_first_switch"].get<double>(), 0.9);
  EXPECT_DOUBLE_EQ(json["summary"]["balancedness_static_mean_after_first_switch"].get<double>(),
                   0.5);
  EXPECT_EQ(json["summary"]["bytes_moved"], 111);
  EXPECT_EQ(json["summary"]["pause_seconds_max"], 0.25);
  EXPECT_EQ(json["steps"].size(), 4u);
}

class RunReportFileTest : public ::testing::Test {
 protected:
  ~RunReportFileTest() override { (void)std::remove(path_.c_str()); }

  // Tests of this binary run side by side.
  const std::string path_ =
      ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(RunReportFileTest, WhatIsWrittenIsRead) {
  RunReport report = TwoDecisionsInThreeSwitches();
  report.switches[2].reason = "steps 1..2";
  report.switches[2].decision = 4;
  report.switches[2].policy = "rollback";
  report.switches[2].asked_by = "uid 1000 (alice)";
  report.began_at = 1.7e9;
  report.even_step_seconds = 0.03;
  report.steps[1].began = 0.125;
  report.steps[1].boundary_seconds = 0.5;
  report.steps[1].work_seconds = 0.25;
  ASSERT_TRUE(WriteRunReport(report, path_).ok());
  const absl::StatusOr<RunReport> back = ReadRunReport(path_);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(RunReportToJson(*back), RunReportToJson(report));
  EXPECT_EQ(back->switches[2].asked_by, "uid 1000 (alice)");
  EXPECT_EQ(back->steps[1].work_seconds, 0.25);
}

TEST_F(RunReportFileTest, AMissingKeyIsNamedWithTheFile) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not JSON"},
      {"[]", "report is not an object"},
      {R"({"format":"eplb.run.v1"})", "job is missing"},
      {R"({"format":3})", "format is missing or not a string"}};
  for (const auto& [text, expected] : cases) {
    ASSERT_TRUE(WriteFileAtomically(path_, text).ok());
    const std::string message(ReadRunReport(path_).status().message());
    EXPECT_THAT(message, ::testing::HasSubstr(expected));
    EXPECT_THAT(message, ::testing::StartsWith(path_));
  }
  EXPECT_EQ(ReadRunReport("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

TEST(RunReportTest, AReasonThatIsNotUtf8IsStillJson) {
  const auto json =
      nlohmann::json::parse(RunReportToJson(TwoDecisionsInThreeSwitches()), nullptr, false);
  EXPECT_FALSE(json.is_discarded());
}

TEST(RunReportTest, AnEmptyRunHasFiniteFigures) {
  const auto json = nlohmann::json::parse(RunReportToJson({}));
  EXPECT_EQ(json["summary"]["balancedness_mean"], 1.0);
  EXPECT_EQ(json["summary"]["rebalances"], 0);
}

}  // namespace
}  // namespace eplb
