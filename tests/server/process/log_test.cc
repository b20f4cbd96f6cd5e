#include "server/process/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace eplb {
namespace {

TEST(LogTest, ALineIsOneJsonObjectWithItsKeysInOrder) {
  EXPECT_EQ(LogLine(1'700'000'000'123'456, LogLevel::kWarn, "kept",
                    {{"job", "a"}, {"version", int64_t{7}}, {"gain", 0.25}}),
            R"({"ts":"2023-11-14T22:13:20.123456Z","level":"warn","event":"kept","job":"a",)"
            R"("version":7,"gain":0.25})");
}

TEST(LogTest, QuotesNewlinesAndBrokenUtf8StayInsideTheLine) {
  const std::string line = LogLine(0, LogLevel::kInfo, "x", {{"reason", "a\"b\nc\x01 \xff\xfe"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_NE(line.find(R"(a\"b\nc\u0001)"), std::string::npos) << line;
  EXPECT_EQ(line.find('\xff'), std::string::npos);
}

TEST(LogTest, ForPeopleALineIsTimeLevelEventFieldsAndReason) {
  EXPECT_EQ(
      LogText(1'700'000'000'123'456, LogLevel::kWarn, "kept",
              {{"reason", "it does\nnot pay"},
               {"job", "a"},
               {"version", int64_t{7}},
               {"peer", "a \"b\""},
               {"none", ""}}),
      "22:13:20.123 warn  kept job=a version=7 peer=\"a \\\"b\\\"\" none=\"\": it does not pay");
  EXPECT_EQ(LogFormatOf("json"), LogFormat::kJson);
  EXPECT_EQ(LogFormatOf("text"), LogFormat::kText);
}

TEST(LogTest, NothingThatATerminalObeysIsInALine) {
  const std::string text = "a\x1b[31m\u009b31m\u202eb";
  EXPECT_EQ(LogText(0, LogLevel::kInfo, "x", {{"peer", text}, {"reason", text}}),
            "00:00:00.000 info  x peer=a?[31m?31m?b: a?[31m?31m?b");
  EXPECT_NE(
      LogLine(0, LogLevel::kInfo, "x", {{"reason", text}}).find(R"("a\u001b[31m\u009b31m\u202eb")"),
      std::string::npos);
}

TEST(LogTest, BeforeTheStartNothingHappens) { Log(LogLevel::kError, "early"); }

// gRPC's threads do so while a leader steps down.
TEST(LogTest, ThreadsMayGoOnLoggingWhileTheLogStops) {
  StartLog("error", LogFormat::kJson);
  std::atomic<bool> done = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 8; ++i) {
    others.emplace_back([&done] {
      while (!done) Log(LogLevel::kError, "late");
    });
  }
  absl::SleepFor(absl::Milliseconds(20));
  StopLog();
  absl::SleepFor(absl::Milliseconds(20));
  done = true;
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace eplb
