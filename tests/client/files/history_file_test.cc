#include "client/files/history_file.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/client/files/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using HistoryFileTest = FilesTest;

std::string Line(const std::string& event, const std::string& more) {
  return "{\"event\":\"" + event + "\",\"rank\":3,\"incarnation\":\"a\"," + more + "}\n";
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
                       Line("drop", Target(9, 2) + ",\"reason\":\"retracted\"") +
                       Line("stop", "\"step\":9,\"reason\":\"finished\""));
  const absl::StatusOr<RankHistory> history = ReadHistoryFile(path);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_EQ(history->rank, RankId{3});
  using Kind = HistoryRecord::Kind;
  std::vector<Kind> kinds;
  for (const HistoryRecord& record : history->records) kinds.push_back(record.kind);
  EXPECT_THAT(kinds, ::testing::ElementsAre(Kind::kStart, Kind::kStep, Kind::kReady, Kind::kVote,
                                            Kind::kCommit, Kind::kDrop, Kind::kStop));
  EXPECT_EQ(history->records[1].last_step, 7);
  EXPECT_TRUE(history->records[3].passed);
  EXPECT_EQ(history->records[4].version, 1);
  EXPECT_EQ(history->records[4].digest, *Digest::FromHex(std::string(63, '0') + "1"));
  EXPECT_EQ(history->records[6].step, 9);
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
      {"{\"event\":\"stop\",\"rank\":4,\"incarnation\":\"a\",\"step\":1}\n", "rank is 4"},
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

}  // namespace
}  // namespace eplb
