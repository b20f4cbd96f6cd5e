#include "client/files/placement_file.h"

#include <gmock/gmock.h>

#include <string>

#include "proto/wire/placement_json.h"
#include "tests/client/files/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using PlacementFileTest = FilesTest;

Placement Rotated(int32_t by) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 6, .num_gpus = 3});
  IndexMatrix slots = Placement::Static(topology).physical_to_logical_map();
  return *Placement::FromSlots(topology, slots.unaryExpr([by](int32_t e) { return (e + by) % 4; }));
}

LoggedPlacement Entry(int64_t step, int64_t version, int32_t by) {
  const Placement placement = Rotated(by);
  return {.step = step,
          .version = version,
          .digest = DigestOf(placement),
          .placement = placement,
          .decided_first_step = step - 8,
          .decided_last_step = step - 1,
          .decision = 7,
          .policy = "rollback",
          .asked_by = "uid 1000 (alice)",
          .reason = "predicted peak falls by \"5 %\"\n"};
}

TEST_F(PlacementFileTest, APlacementComesBack) {
  const std::string path = Write("p.json", wire::PlacementToJson(Rotated(1)) + "\n");
  EXPECT_EQ(*ReadPlacementFile(path), Rotated(1));
}

TEST_F(PlacementFileTest, ErrorsBeginWithThePath) {
  EXPECT_EQ(ReadPlacementFile(Path("no")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadPlacementFile(Write("bad", "{}")).status().message()),
              StartsWith(Path("bad") + ": format is missing"));
}

TEST_F(PlacementFileTest, ALogComesBackInOrder) {
  const std::string path =
      Write("log", PlacementsLogLine(Entry(0, 0, 0)) + "\n" + PlacementsLogLine(Entry(48, 3, 1)) +
                       "\n" + PlacementsLogLine(Entry(96, 4, 2)) + "\n");
  const auto log = ReadPlacementsLog(path);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_EQ(log->size(), 3U);
  EXPECT_EQ((*log)[1].step, 48);
  EXPECT_EQ((*log)[1].version, 3);
  EXPECT_EQ((*log)[1].decided_first_step, 40);
  EXPECT_EQ((*log)[1].decided_last_step, 47);
  EXPECT_EQ((*log)[1].decision, 7);
  EXPECT_EQ((*log)[1].policy, "rollback");
  EXPECT_EQ((*log)[1].asked_by, "uid 1000 (alice)");
  EXPECT_EQ((*log)[1].reason, Entry(48, 3, 1).reason);
  EXPECT_EQ((*log)[2].placement, Rotated(2));
  EXPECT_EQ((*log)[2].digest, DigestOf(Rotated(2)));
}

TEST_F(PlacementFileTest, ALineWithoutItsDecisionWasNotDecided) {
  const std::string path =
      Write("log", "{\"step\":0,\"version\":0,\"digest\":\"" + DigestOf(Rotated(1)).Hex() +
                       "\",\"placement\":" + wire::PlacementToJson(Rotated(1)) + "}\n");
  const auto log = ReadPlacementsLog(path);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(log->front().decided_first_step, 0);
  EXPECT_EQ(log->front().decided_last_step, -1);
  EXPECT_EQ(log->front().decision, 0);
  EXPECT_EQ(log->front().policy, "");
  EXPECT_EQ(log->front().asked_by, "");
  EXPECT_EQ(log->front().reason, "");
}

TEST_F(PlacementFileTest, ABrokenLogNamesTheLine) {
  const std::string first = PlacementsLogLine(Entry(8, 2, 0)) + "\n";
  LoggedPlacement forged = Entry(16, 3, 1);
  forged.digest = DigestOf(Rotated(2));
  const std::pair<std::string, std::string> cases[] = {
      {PlacementsLogLine(Entry(8, 3, 1)), "step 8 is not above"},
      {PlacementsLogLine(Entry(16, 2, 1)), "version 2 is not above"},
      {PlacementsLogLine(forged), "that of its placement is"},
      {PlacementsLogLine(Entry(16, 3, 1)).substr(0, 200), "column"},
      {R"({"step":16,"version":3})", "digest is missing"},
      {PlacementsLogLine(Entry(16, 3, 1)).replace(0, 1, "{\"reason\":1,"),
       "key \"reason\" is given twice"},
      {"[]", "step is missing"},
  };
  for (const auto& [line, message] : cases) {
    const std::string path = Write("log", first + line + "\n");
    const std::string text(ReadPlacementsLog(path).status().message());
    EXPECT_THAT(text, StartsWith(path + ": line 2: "));
    EXPECT_THAT(text, HasSubstr(message));
  }
}

}  // namespace
}  // namespace eplb
