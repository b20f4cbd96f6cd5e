#include "client/run_log/run_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "client/run_log/boundary_times.h"

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

TEST_F(RunLogTest, ALineWithATimeHasIt) {
  EXPECT_EQ(RunLogLineToJson({.event = "ready"}, 0, "i").find("unix_micros"), std::string::npos);
  EXPECT_NE(
      RunLogLineToJson({.event = "ready", .unix_micros = 17}, 0, "i").find(R"("unix_micros":17})"),
      std::string::npos);
}

TEST_F(RunLogTest, ABoundaryIsALineOfItsOwn) {
  const BoundaryTimes times = {.step = 7, .version = 3, .outcome = "committed"};
  RunLog log = Open();
  log.WriteBoundary(times);
  EXPECT_EQ(Lines().at(0), BoundaryTimesToJson(times, 3, "run-0"));
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

TEST_F(RunLogTest, ALimitOfFileSizesCostsLinesAndNotTheProcess) {
  LineFile file = LineFile::Open(path_).value();
  const pid_t child = fork();
  if (child == 0) {
    (void)std::signal(SIGXFSZ, SIG_DFL);  // default in a trainer
    const rlimit limit{.rlim_cur = 100, .rlim_max = 100};
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 9; ++i) file.Write(std::string(29, 'x'));
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(std::filesystem::file_size(path_), 100U);
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
