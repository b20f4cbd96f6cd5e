#include "client/run_log/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>

#include "base/files.h"
#include "tests/client/cli/formats/test_files.h"

#include <nlohmann/json.hpp>

namespace eplb {

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using HistoryFileTest = FilesTest;

std::string Line(const std::string& event, const std::string& more) {
  return "{\"event\":\"" + event + "\",\"rank\":3,\"run_id\":\"a\"," + more + "}\n";
}

std::string Target(int step, int version) {
  return "\"step\":" + std::to_string(step) + ",\"version\":" + std::to_string(version) +
         ",\"digest\":\"" + std::string(63, '0') + std::to_string(version) + "\"";
}

TEST_F(HistoryFileTest, EveryEventBecomesItsRecord) {
  const std::string path =
      Write("log", Line("start", Target(0, 0)) + Line("steps", Target(0, 0) + ",\"last_step\":7") +
                       Line("ready", Target(8, 1)) + Line("vote", Target(8, 1) + ",\"ok\":true") +
                       Line("commit", Target(8, 1)) +
                       Line("drop", Target(9, 2) + ",\"reason\":\"cancelled\"") +
                       Line("stop", "\"step\":9,\"reason\":\"finished\""));
  const absl::StatusOr<RankHistory> history = ReadHistoryFile(path);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_EQ(history->rank, RankId{3});
  using RecordKind = HistoryRecord::Kind;
  std::vector<RecordKind> kinds;
  for (const HistoryRecord& record : history->records) kinds.push_back(record.kind);
  EXPECT_THAT(kinds,
              ::testing::ElementsAre(RecordKind::kStart, RecordKind::kStep, RecordKind::kPrepared,
                                     RecordKind::kVote, RecordKind::kCommit, RecordKind::kDrop,
                                     RecordKind::kStop));
  EXPECT_EQ(history->records[1].last_step, 7);
  EXPECT_TRUE(history->records[3].passed);
  EXPECT_EQ(history->records[4].version, 1);
  EXPECT_EQ(history->records[4].digest, *Digest::FromHex(std::string(63, '0') + "1"));
  EXPECT_EQ(history->records[6].step, 9);
}

constexpr char kBoundary[] =
    R"("step":7,"version":3,"outcome":"committed","transport":"host","unix_micros":100,"micros":50,)"
    R"("spans":[{"name":"vote","unix_micros":101,"micros":9}],"rounds":[)"
    R"({"round":2,"unix_micros":120,"micros":5,"sent_bytes":8,"received_bytes":16},)"
    R"({"round":4,"unix_micros":125,"micros":5,"sent_bytes":0,"received_bytes":0,)"
    R"("checksum_micros":1}])";

TEST_F(HistoryFileTest, ABoundarysTimesAreNoRecordButATimeline) {
  Write("rank-0.jsonl", Line("start", Target(0, 0)) +
                            Line("ready", Target(7, 3) + R"(,"unix_micros":90)") +
                            Line("boundary", kBoundary));
  Write("rank-1.jsonl", Line("start", Target(0, 0)) + Line("ready", Target(7, 3)));
  EXPECT_EQ(ReadHistoryFile(Path("rank-0.jsonl"))->records.size(), 2U);
  const auto timelines = ReadTimelines(Path(""));
  ASSERT_TRUE(timelines.ok()) << timelines.status();
  ASSERT_EQ(timelines->size(), 2U);
  EXPECT_EQ((*timelines)[1].rank, RankId{1});
  EXPECT_TRUE((*timelines)[1].prepared.empty()) << "of an older library";
  const RankTimeline& timeline = timelines->front();
  ASSERT_EQ(timeline.prepared.size(), 1U);
  EXPECT_EQ(timeline.prepared[0].version, 3);
  EXPECT_EQ(timeline.prepared[0].unix_micros, 90);
  ASSERT_EQ(timeline.boundaries.size(), 1U);
  EXPECT_EQ(timeline.boundaries[0].run_id, "a");
  const std::string again = BoundaryTimesToJson(timeline.boundaries[0].times, 3, "a");
  EXPECT_EQ(again + "\n", Line("boundary", kBoundary)) << "read as it was written";
}

TEST_F(HistoryFileTest, ATimelineThatIsNoneNamesFileAndLine) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kBoundary;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, std::string> cases[] = {
      {with(R"("micros":50)", R"("micros":-1)"), "micros is -1, expected >= 0"},
      {with(R"("unix_micros":100)", R"("unix_micros":9007199254740993)"), "expected at most"},
      {with(R"("unix_micros":101)", R"("unix_micros":"x")"), "unix_micros is a string"},
      {with(R"("rounds")", R"("round")"), "rounds is missing or not an array"},
      {with(R"("name":"vote",)", ""), "name is missing"},
      {with(R"("outcome":"committed",)", ""), "outcome is missing"},
  };
  for (const auto& [boundary, message] : cases) {
    const std::string path =
        Write("rank-0.jsonl", Line("start", Target(0, 0)) + Line("boundary", boundary));
    const absl::Status status = ReadTimelines(Path("")).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank-0.jsonl: line 2: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_EQ(ReadTimelines(Path("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HistoryFileTest, ALineThatADyingProcessCutOffIsLeftOut) {
  const std::string first = Line("start", Target(0, 0));
  const std::string second = Line("commit", Target(8, 1));
  const std::string path = Write("log", first + second.substr(0, second.size() / 2));
  const absl::StatusOr<RankHistory> history = ReadHistoryFile(path);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_EQ(history->records.size(), 1U);
  // Whole but for its newline: kept.
  Write("log", first + second.substr(0, second.size() - 1));
  EXPECT_EQ(ReadHistoryFile(path)->records.size(), 2U);
}

TEST_F(HistoryFileTest, AnythingElseMalformedNamesFileAndLine) {
  const std::string first = Line("start", Target(0, 0));
  const std::pair<std::string, std::string> cases[] = {
      {"{\"event\":\n", "column"},
      {Line("begin", Target(0, 0)), "event is \"begin\""},
      {Line("steps", Target(0, 0)), "last_step is missing"},
      {Line("steps", Target(5, 0) + ",\"last_step\":4"), "last_step is 4"},
      {Line("vote", Target(5, 1)), "ok is missing"},
      {Line("vote", Target(5, 1) + ",\"ok\":1"), "ok is missing or no boolean"},
      {Line("commit", "\"step\":5,\"version\":1"), "digest is missing"},
      {Line("commit", "\"step\":5,\"version\":1,\"digest\":\"12\""), "64"},
      {Line("commit", "\"step\":-5,\"version\":1"), "step is -5"},
      {Line("stop", "\"version\":1"), "step is missing"},
      {"{\"event\":\"stop\",\"rank\":4,\"run_id\":\"a\",\"step\":1}\n", "rank is 4"},
  };
  for (const auto& [line, message] : cases) {
    const std::string path = Write("log", first + line);
    const std::string text(ReadHistoryFile(path).status().message());
    EXPECT_THAT(text, StartsWith(path + ": line 2: "));
    EXPECT_THAT(text, HasSubstr(message));
  }
  EXPECT_THAT(std::string(ReadHistoryFile(Write("log", "")).status().message()),
              HasSubstr("has no record"));
}

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
  EXPECT_TRUE(json["summary"]["balancedness_without_eplb_mean"].is_null()) << "an older trainer";
  EXPECT_TRUE(json["summary"]["time_saved"].is_null());
  EXPECT_EQ(json["summary"]["bytes_moved"], 111);
  EXPECT_EQ(json["summary"]["pause_seconds_max"], 0.25);
  EXPECT_EQ(json["steps"].size(), 4u);
}

TEST(RunReportTest, AStepWithoutTokensIsInNoMean) {
  RunReport report = TwoDecisionsInThreeSwitches();
  report.steps.back().balancedness.reset();
  report.steps.back().balancedness_static.reset();
  const auto json = nlohmann::json::parse(RunReportToJson(report));
  EXPECT_TRUE(json["steps"].back()["balancedness"].is_null());
  EXPECT_DOUBLE_EQ(json["summary"]["balancedness_mean"].get<double>(), (0.5 + 0.5 + 0.9) / 3);
  EXPECT_DOUBLE_EQ(json["summary"]["balancedness_static_mean"].get<double>(), 0.5);
}

TEST(RunReportTest, TimeSavedCountsPeaksAgainstOneSlotPerExpert) {
  RunReport report = TwoDecisionsInThreeSwitches();
  for (StepRecord& step : report.steps) {
    step.balancedness_without_eplb = step.step < 2 ? 0.4 : 0.6;
    step.peak_tokens = step.step < 2 ? 100 : 60;
    step.peak_tokens_without_eplb = 90 + step.step;
  }
  const auto summary = nlohmann::json::parse(RunReportToJson(report))["summary"];
  EXPECT_DOUBLE_EQ(summary["balancedness_without_eplb_mean"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(summary["time_saved"].get<double>(), 1 - 320.0 / 366);
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
  report.split = SplitMode::kBatch;
  report.even_step_seconds = 0.03;
  report.steps[1].began = 0.125;
  report.steps[1].boundary_seconds = 0.5;
  report.steps[1].work_seconds = 0.25;
  report.steps[1].balancedness_without_eplb = 0.75;
  report.steps[1].peak_tokens = 12;
  report.steps[1].peak_tokens_without_eplb = 16;
  ASSERT_TRUE(WriteRunReport(report, path_).ok());
  const absl::StatusOr<RunReport> back = ReadRunReport(path_);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(RunReportToJson(*back), RunReportToJson(report));
  EXPECT_EQ(back->switches[2].asked_by, "uid 1000 (alice)");
  EXPECT_EQ(back->steps[1].work_seconds, 0.25);
  EXPECT_EQ(back->steps[1].peak_tokens_without_eplb, 16);
  EXPECT_FALSE(back->steps[0].peak_tokens.has_value());
}

TEST_F(RunReportFileTest, AMissingKeyIsNamedWithTheFile) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\n\"job\": nan}", ": line 2, column 9: "},
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

TEST(RunReportTest, AnEmptyRunHasNoFigures) {
  const auto json = nlohmann::json::parse(RunReportToJson({}));
  EXPECT_TRUE(json["summary"]["balancedness_mean"].is_null());
  EXPECT_EQ(json["summary"]["rebalances"], 0);
}

using EventsFileTest = FilesTest;

TEST_F(EventsFileTest, EventsAreReadOldestFirstWhateverTheirOrder) {
  const std::string path = Write("events.json", R"json({"job":"demo","events":[
    {"sequence":9,"unix_micros":200,"time":"x","job":"demo","name":"resume","version":3,"reason":"on",
     "actor":"uid 0 (root)","before":"paused: tea","after":"not paused"},
    {"sequence":8,"unix_micros":100,"time":"x","job":"demo","name":"pause","version":3,"reason":"tea",
     "actor":"uid 0 (root)","before":"not paused","after":"paused: tea"}]
})json");
  const auto events = ReadEventsFile(path, "demo");
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_EQ(events->job, "demo");
  ASSERT_EQ(events->events.size(), 2u);
  EXPECT_EQ(events->events[0].name, "pause");
  EXPECT_EQ(events->events[0].unix_micros, 100);
  EXPECT_EQ(events->events[1].before, "paused: tea");
  EXPECT_EQ(events->events[1].actor, "uid 0 (root)");
}

TEST_F(EventsFileTest, AJobWithoutEventsHasNone) {
  EXPECT_TRUE(ReadEventsFile(Write("e", R"({"job":"demo","events":[]})"), "demo")->events.empty());
}

TEST_F(EventsFileTest, WhatIsMissingIsNamedWithTheFile) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "events.json: "},
      {R"({"events":[]})", "job is missing"},
      {R"({"job":"a"})", "events is missing or not an array"},
      {R"({"job":"a","events":[1]})", "events is no array of objects"},
      {R"({"job":"a","events":[{"sequence":1}]})", "events[0]: unix_micros is missing"},
      {R"({"job":"a","events":[]})", "is the audit log of job a, the run is of job demo"}};
  for (const auto& [text, expected] : cases) {
    const std::string path = Write("events.json", text);
    const std::string message(ReadEventsFile(path, "demo").status().message());
    EXPECT_THAT(message, HasSubstr(expected));
    EXPECT_EQ(message.find(path), 0u) << message;
  }
  EXPECT_EQ(ReadEventsFile(Path("none"), "demo").status().code(), absl::StatusCode::kNotFound);
}

// Two ranks, three steps, one switch after step 1.
class RunDirectoryTest : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    RunReport report;
    report.job = "demo";
    report.world_size = 2;
    report.switches = {{.step = 1, .version = 1, .decided_first_step = 0, .decided_last_step = 1}};
    ASSERT_TRUE(WriteRunReport(report, Path("run.json")).ok());
    for (const char* rank : {"0", "1"}) {
      const std::string from = std::string(R"(","rank":)") + rank + R"(,"run_id":"a","step":)";
      Write(std::string("rank-") + rank + ".jsonl",
            R"({"event":"start)" + from + R"(0,"version":0,"digest":")" + std::string(64, '0') +
                "\"}\n" + R"({"event":"stop)" + from + "2}\n");
    }
    WriteLoads(3);
    Write("placements.jsonl", PlacementLine(0, 0) + PlacementLine(2, 1));
  }
  void WriteLoads(int steps) const {
    std::string text;
    for (int step = 0; step < steps; ++step) {
      const std::string number = std::to_string(step);
      text += R"({"first_step":)" + number + R"(,"last_step":)" + number +
              R"(,"load":[[1,2]]})"
              "\n";
    }
    Write("loads.jsonl", text);
  }
  static std::string PlacementLine(int64_t step, int64_t version) {
    const Placement placement = Placement::Static(
        *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 2, .num_gpus = 2}));
    return PlacementsLogLine({.step = step,
                              .version = version,
                              .digest = DigestOf(placement),
                              .placement = placement,
                              .decided_first_step = 0,
                              .decided_last_step = version == 0 ? -1 : 1}) +
           "\n";
  }
  std::string Refusal() const { return std::string(ReadRunDirectory(Path("")).status().message()); }
};

TEST_F(RunDirectoryTest, AFileThatLacksWhatAnotherOneRefersToIsNamed) {
  EXPECT_EQ(Refusal(), "");
  WriteLoads(1);
  EXPECT_EQ(Refusal(), Path("") +
                           "/loads.jsonl: has 1 steps, the decision on version 1 of "
                           "placements.jsonl covers steps up to 1");
  WriteLoads(3);
  const std::pair<std::string, const char*> cases[] = {
      {"", "has no record"},
      {PlacementLine(2, 1), "its first placement begins at step 2, expected 0"},
      {PlacementLine(0, 0), "lacks version 1 or its predecessor, and run.json has a switch to it"},
      {PlacementLine(0, 1), "lacks version 1 or its predecessor, and run.json has a switch to it"}};
  for (const auto& [text, expected] : cases) {
    Write("placements.jsonl", text);
    EXPECT_EQ(Refusal(), Path("") + "/placements.jsonl: " + expected);
  }
}

TEST_F(RunDirectoryTest, TheLogsOfAllRanksAreReadOrTheMissingOneIsNamed) {
  EXPECT_EQ(ReadRunLogs(Path(""))->histories.size(), 2U);
  std::filesystem::remove(Path("rank-1.jsonl"));
  const auto refusal = [this] { return std::string(ReadRunLogs(Path("")).status().message()); };
  EXPECT_THAT(refusal(), HasSubstr("/rank-1.jsonl")) << "run.json has two ranks";
  std::filesystem::remove(Path("run.json"));
  EXPECT_EQ(ReadRunLogs(Path(""))->histories.size(), 1U);
  Write("rank-2.jsonl", "");
  EXPECT_THAT(refusal(), HasSubstr("/rank-1.jsonl")) << "rank 2 has a log";
  EXPECT_THAT(std::string(ReadTimelines(Path("")).status().message()), HasSubstr("/rank-1.jsonl"));
}

}  // namespace

}  // namespace eplb
