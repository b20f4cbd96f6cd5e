#include "client/run_log/run_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/monotonic_clock.h"

namespace eplb {
namespace {

class RunLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = ::testing::TempDir() + "run_log_test_" + test->name() + ".jsonl";
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  RunLog Open() { return RunLog(LineFile::Open(path_).value(), 3, "run-0"); }
  std::vector<std::string> Lines() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  std::string path_;
};

std::string Hex(char digit) { return std::string(64, digit); }

TEST_F(RunLogTest, LineHasEveryKey) {
  EXPECT_EQ(RunLogLineToJson({.event = "vote",
                              .step = 17,
                              .last_step = 17,
                              .version = 3,
                              .digest = Digest::FromHex(Hex('a')).value(),
                              .ok = false,
                              .reason = "rank 2 said \"no\"\nand left"},
                             1, "run-0"),
            R"({"event":"vote","rank":1,"run_id":"run-0","step":17,"last_step":17,"version":3,)"
            R"("digest":")" +
                Hex('a') + R"(","ok":false,"reason":"rank 2 said \"no\"\nand left"})");
}

TEST_F(RunLogTest, ReasonThatIsNotUtf8StillGivesALine) {
  EXPECT_NE(RunLogLineToJson({.event = "stop", .reason = "\xff\xfe"}, 0, "i").find("reason"),
            std::string::npos);
}

TEST_F(RunLogTest, ALineWithATimeHasItAndABoundaryHasItsParts) {
  EXPECT_EQ(RunLogLineToJson({.event = "ready"}, 0, "i").find("unix_micros"), std::string::npos);
  EXPECT_NE(
      RunLogLineToJson({.event = "ready", .unix_micros = 17}, 0, "i").find(R"("unix_micros":17})"),
      std::string::npos);
  const BoundaryTimes times = {
      .step = 7,
      .version = 3,
      .outcome = "committed",
      .transport = "host",
      .whole = {.name = "boundary", .unix_micros = 100, .micros = 50},
      .spans = {{.name = "vote", .unix_micros = 101, .micros = 9}},
      .rounds = {
          {.round = 2, .unix_micros = 120, .micros = 5, .sent_bytes = 8, .received_bytes = 16},
          {.round = 4, .unix_micros = 125, .micros = 5, .checksum_micros = 1}}};
  RunLog log = Open();
  log.WriteBoundary(times);
  EXPECT_EQ(Lines().at(0),
            R"({"event":"boundary","rank":3,"run_id":"run-0","step":7,"version":3,)"
            R"("outcome":"committed","transport":"host","unix_micros":100,"micros":50,)"
            R"("spans":[{"name":"vote","unix_micros":101,"micros":9}],"rounds":[)"
            R"({"round":2,"unix_micros":120,"micros":5,"sent_bytes":8,"received_bytes":16},)"
            R"({"round":4,"unix_micros":125,"micros":5,"sent_bytes":0,"received_bytes":0,)"
            R"("checksum_micros":1}]})");
}

TEST_F(RunLogTest, ATimersSpansLieInItsBoundaryOnTheWallClock) {
  const int64_t before = absl::ToUnixMicros(absl::Now());
  const absl::Time began = MonotonicNow();
  BoundaryTimer timer(7, 3, began);
  const absl::Time vote = MonotonicNow();
  absl::SleepFor(absl::Milliseconds(2));
  timer.AddSpan("vote", vote);
  timer.AddRound({.round = 1, .began = vote, .ended = vote + absl::Microseconds(5)});
  timer.SetOutcome("dropped");
  const BoundaryTimes times = timer.Finish(MonotonicNow());
  const int64_t after = absl::ToUnixMicros(absl::Now());
  EXPECT_EQ(times.outcome, "dropped");
  ASSERT_EQ(times.spans.size(), 1U);
  const BoundarySpan& span = times.spans[0];
  EXPECT_GE(span.micros, 2000);
  EXPECT_LE(times.whole.unix_micros, span.unix_micros);
  EXPECT_LE(span.unix_micros + span.micros, times.whole.unix_micros + times.whole.micros);
  EXPECT_EQ(times.rounds.at(0).unix_micros, span.unix_micros);
  // Two readings of two clocks, a microsecond apart at most but for a step of the wall clock.
  EXPECT_GE(times.whole.unix_micros, before - 1000);
  EXPECT_LE(times.whole.unix_micros + times.whole.micros, after + 1000);
}

TEST_F(RunLogTest, StepsOfOnePlacementAreOneLine) {
  RunLog log = Open();
  for (int64_t step = 10; step < 15; ++step) log.AddStep(step, 0, {});
  log.FlushSteps();
  log.FlushSteps();
  ASSERT_EQ(Lines().size(), 1U);
  EXPECT_NE(
      Lines()[0].find(R"("event":"steps","rank":3,"run_id":"run-0","step":10,"last_step":14)"),
      std::string::npos)
      << Lines()[0];
}

TEST_F(RunLogTest, NewVersionOrDigestBeginsANewLine) {
  RunLog log = Open();
  log.AddStep(0, 0, {});
  log.AddStep(1, 1, {});
  log.AddStep(2, 1, Digest::FromHex(Hex('b')).value());
  log.FlushSteps();
  EXPECT_EQ(Lines().size(), 3U);
}

TEST_F(RunLogTest, SecondRunAppends) {
  Open().Write({.event = "start"});
  Open().Write({.event = "start"});
  EXPECT_EQ(Lines().size(), 2U);
}

TEST_F(RunLogTest, ClearDropsEarlierLines) {
  Open().Write({.event = "start"});
  LineFile file = LineFile::Open(path_).value();
  ASSERT_TRUE(file.Clear().ok());
  file.Write("{}");
  EXPECT_EQ(Lines(), std::vector<std::string>{"{}"});
}

TEST_F(RunLogTest, LinesOfTwoThreadsDoNotMix) {
  RunLog log = Open();
  const std::string reason(3000, 'r');
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) log.Write({.event = "ready", .reason = reason});
  });
  for (int i = 0; i < 100; ++i) log.Write({.event = "vote", .reason = reason});
  other.join();
  const std::vector<std::string> lines = Lines();
  EXPECT_EQ(lines.size(), 200U);
  for (const std::string& line : lines) {
    EXPECT_EQ(line.front(), '{');
    EXPECT_EQ(line.substr(line.size() - 2), "\"}");
  }
}

TEST_F(RunLogTest, ClosedLogWritesNothing) {
  RunLog log(LineFile(), 0, "i");
  log.AddStep(0, 0, {});
  log.FlushSteps();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(RunLogTest, PathThatCannotBeOpenedIsNamed) {
  const absl::Status status = LineFile::Open("/nonexistent/rank-0.jsonl").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "/nonexistent/rank-0.jsonl: No such file or directory");
}

}  // namespace
}  // namespace eplb
