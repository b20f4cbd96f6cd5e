#include "proto/wire/placement_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "placement/placement.h"
#include "proto/wire/placement_files.h"
#include "tests/client/cli/formats/test_files.h"
#include "tests/placement/random_placement.h"

#include <nlohmann/json.hpp>

namespace eplb::wire {

namespace {

using ::testing::HasSubstr;

Topology MakeTopology(const TopologyOptions& options) { return *Topology::Make(options); }

// Every expert in one slot, the rest at random, and a random order of replicas.
Placement RandomPlacement(std::mt19937& random) {
  auto below = [&random](int32_t bound) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(bound));
  };
  const int32_t num_experts = 1 + below(12);
  const int32_t num_gpus = 1 + below(6);
  const int32_t num_slots = std::max(num_experts, num_gpus) + below(9);
  const Topology topology = MakeTopology({.num_layers = 1 + below(4),
                                          .num_experts = num_experts,
                                          .num_slots = num_slots,
                                          .num_gpus = num_gpus,
                                          .num_nodes = num_gpus % 2 == 0 ? 2 : 1,
                                          .num_groups = 1 + below(3)});
  return RandomPlacement(random, topology);
}

// Two experts in three slots of one GPU; expert 1 has its primary in slot 2.
std::string Small() {
  return R"({"format":"eplb.placement.v1","num_layers":1,"num_logical_experts":2,"num_slots":3,)"
         R"("num_gpus":1,"num_nodes":1,"num_groups":1,"physical_to_logical_map":[[0,1,1]],)"
         R"("logical_to_physical_map":[[[0,-1],[2,1]]],"logical_replica_count":[[1,2]]})";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(LayerToJsonTest, ALayerSaysWhereEachExpertLives) {
  const Topology topology = MakeTopology(
      {.num_layers = 2, .num_experts = 3, .num_slots = 4, .num_gpus = 2, .num_nodes = 1});
  IndexMatrix slots(2, 4);
  slots << 0, 1, 2, 0, 2, 1, 1, 0;
  const Placement placement = *Placement::FromSlots(topology, slots);
  EXPECT_EQ(LayerToJson(placement, LayerId{1}).dump(),
            R"({"layer":1,"num_gpus":2,"num_nodes":1,"experts":[2,1,1,0],"gpus":[0,0,1,1],)"
            R"("primaries":[3,1,0]})");
}

TEST(PlacementJsonTest, WritesTheKeysInOrderOnOneLine) {
  const Topology topology =
      MakeTopology({.num_layers = 1, .num_experts = 2, .num_slots = 3, .num_gpus = 1});
  IndexMatrix slots(1, 3);
  IndexMatrix ranks(1, 3);
  slots << 0, 1, 1;
  ranks << 0, 1, 0;
  EXPECT_EQ(PlacementToJson(*Placement::FromSlotsAndRanks(topology, slots, ranks)), Small());
}

TEST(PlacementJsonTest, WritesSlotsPerGpuOnlyWhereGpusDiffer) {
  const Topology topology =
      MakeTopology({.num_layers = 1, .num_experts = 3, .num_slots = 5, .num_gpus = 2});
  EXPECT_THAT(PlacementToJson(Placement::Static(topology)), HasSubstr("\"slots_per_gpu\":[3,2]}"));
  EXPECT_THAT(Small(), ::testing::Not(HasSubstr("slots_per_gpu")));
}

TEST(PlacementJsonTest, RandomPlacementsComeBackEqual) {
  constexpr uint32_t kSeed = 20240611;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 300; ++i) {
    const Placement placement = RandomPlacement(random);
    const absl::StatusOr<Placement> back = PlacementFromJson(PlacementToJson(placement));
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(*back, placement);
  }
}

TEST(PlacementJsonTest, AnyOrderLayoutAndUnknownKeysAreRead) {
  const std::string text =
      "\n{ \"note\": {\"a\": [1, {\"b\": []}]}, \"physical_to_logical_map\": [ [0, 1, 1] ],\n"
      "\"logical_replica_count\":[[1,2]],\"logical_to_physical_map\":[[[0,-1],[2,1]]],"
      "\"num_groups\":1,\"num_nodes\":1,\"num_gpus\":1,\"num_slots\":3,\"num_logical_experts\":2,"
      "\"num_layers\":1,\"format\":\"eplb.placement.v1\"}\n";
  const absl::StatusOr<Placement> placement = PlacementFromJson(text);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(PlacementToJson(*placement), Small());
}

// SmallWithShares("[[1,0.25,0.75]]").
std::string SmallWithShares(const std::string& shares) {
  return Replaced(Small(), "[[1,2]]}", "[[1,2]],\"replica_share\":" + shares + "}");
}

TEST(PlacementJsonTest, SharesStandBehindTheCountsAndComeBack) {
  const Placement placement = *PlacementFromJson(Small());
  RealMatrix shares(1, 3);
  shares << 1, 0.25, 0.75;
  const std::string text = PlacementToJson(placement, &shares);
  EXPECT_EQ(text, SmallWithShares("[[1,0.25,0.75]]"));
  const absl::StatusOr<PlacementWithShares> back = PlacementWithSharesFromJson(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->placement, placement);
  ASSERT_TRUE(back->replica_share.has_value());
  EXPECT_TRUE((*back->replica_share == shares).all());
  EXPECT_EQ(*PlacementFromJson(text), placement);
}

TEST(PlacementJsonTest, SharesMayBeMissingOrWholeNumbers) {
  EXPECT_FALSE(PlacementWithSharesFromJson(Small())->replica_share.has_value());
  const auto whole = PlacementWithSharesFromJson(SmallWithShares("[[1,0,1]]"));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole->replica_share)(0, 2), 1);
}

TEST(PlacementJsonTest, RandomSharesComeBackBitForBit) {
  constexpr uint32_t kSeed = 20240612;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 100; ++i) {
    const Placement placement = RandomPlacement(random);
    const IndexMatrix& experts = placement.physical_to_logical_map();
    RealMatrix shares(experts.rows(), experts.cols());
    for (Eigen::Index layer = 0; layer < experts.rows(); ++layer) {
      for (int32_t expert = 0; expert < placement.topology().num_experts(); ++expert) {
        double left = 1;
        for (const int32_t slot : placement.ReplicasOf({static_cast<int32_t>(layer)}, {expert})) {
          shares(layer, slot) = left * static_cast<double>(random()) / 4294967296.0;
          left -= shares(layer, slot);
        }
        shares(layer, placement.PrimaryOf({static_cast<int32_t>(layer)}, {expert}).value) += left;
      }
    }
    const auto back = PlacementWithSharesFromJson(PlacementToJson(placement, &shares));
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_TRUE((*back->replica_share == shares).all());
  }
}

struct Refused {
  std::string name;
  std::string text;
  std::string message;
};

class PlacementJsonRefusedTest : public ::testing::TestWithParam<Refused> {};

TEST_P(PlacementJsonRefusedTest, NamesKeyAndPlace) {
  const absl::StatusOr<Placement> placement = PlacementFromJson(GetParam().text);
  ASSERT_FALSE(placement.ok());
  EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(placement.status().message());
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 300U);
}

std::vector<Refused> AllRefused() {
  const std::string good = Small();
  return {
      {"Empty", "", "empty"},
      {"NotJson", "placement", "line 1, column 1"},
      {"Truncated", good.substr(0, good.size() / 2), "column"},
      {"Trailing", good + "]", "column"},
      {"ByteOrderMark", "\xEF\xBB\xBF" + good, "byte order mark"},
      {"NotUtf8", Replaced(good, "eplb.", "\xff\xfe"), "line 1"},
      {"Array", "[1]", "expected a JSON object"},
      {"NoFormat", Replaced(good, "\"format\"", "\"form\""), "format is missing"},
      {"OtherFormat", Replaced(good, "placement.v1", "placement.v2"), "format is"},
      {"KeyTwice", Replaced(good, "\"num_gpus\":1", "\"num_gpus\":1,\"num_gpus\":1"),
       "key \"num_gpus\" is given twice"},
      {"KeyTwiceDeep", Replaced(good, "\"num_gpus\":1", "\"num_gpus\":1,\"x\":[{\"a\":1,\"a\":1}]"),
       "key \"a\" is given twice"},
      {"NumberIsText", Replaced(good, "\"num_slots\":3", "\"num_slots\":\"3\""),
       "num_slots is a string, expected an integer"},
      {"NumberIsReal", Replaced(good, "\"num_slots\":3", "\"num_slots\":3.0"),
       "num_slots is a number, expected an integer"},
      {"NumberMissing", Replaced(good, "\"num_nodes\":1,", ""), "num_nodes is missing"},
      {"AbsurdNumber", Replaced(good, "\"num_layers\":1", "\"num_layers\":4294967297"),
       "num_layers is 4294967297"},
      {"AbsurdLayers", Replaced(good, "\"num_layers\":1", "\"num_layers\":1000000"),
       "physical_to_logical_map has 1 layers, num_layers is 1000000"},
      {"Zero", Replaced(good, "\"num_gpus\":1", "\"num_gpus\":0"), "num_gpus is 0"},
      {"FewSlots", Replaced(good, "[[0,1,1]]", "[[0,1]]"),
       "physical_to_logical_map layer 0 has 2 entries, expected 3 slots"},
      {"Flat", Replaced(good, "[[0,1,1]]", "[0,1,1]"), "has 1 levels of arrays, expected 2"},
      {"Mixed", Replaced(good, "[[0,1,1]]", "[[0,[1],1]]"), "[0][1] is an array"},
      {"TextInside", Replaced(good, "[[0,1,1]]", "[[0,\"1\",1]]"), "[0][1] is a string"},
      {"RealInside", Replaced(good, "[[0,1,1]]", "[[0,1.5,1]]"),
       "physical_to_logical_map[0][1] is 1.5, expected an integer"},
      {"HugeInside", Replaced(good, "[[0,1,1]]", "[[0,99999999999999999999,1]]"),
       "physical_to_logical_map[0][1] is 99999999999999999999, expected -1..2^31-1"},
      {"FarNegative", Replaced(good, "[[0,-1],[2,1]]", "[[0,-1],[2,-7]]"),
       "layer 0 expert 1 names slot -7, expected 0..2 or -1"},
      {"IdTooLarge", Replaced(good, "[[0,1,1]]", "[[0,1,2]]"), "holds expert 2"},
      {"IdNegative", Replaced(good, "[[0,1,1]]", "[[0,1,-1]]"), "slot 2 holds -1"},
      {"ExpertMissing", Replaced(good, "[[0,1,1]]", "[[1,1,1]]"), "expert 0 is in no slot"},
      {"WrongCount", Replaced(good, "[[1,2]]", "[[1,1]]"),
       "logical_replica_count layer 0 expert 1 is 1"},
      {"SlotTooLarge", Replaced(good, "[2,1]", "[3,1]"), "names slot 3"},
      {"MapsDisagree", Replaced(good, "[[[0,-1],[2,1]]]", "[[[2,-1],[0,1]]]"), "layer 0"},
      {"PaddingInFront", Replaced(good, "[0,-1]", "[-1,0]"), "has padding -1 before slot 0"},
      {"PaddingTooWide", Replaced(good, "[[0,-1],[2,1]]", "[[0,-1,-1],[2,1,-1]]"),
       "has 3 entries an expert"},
      {"PaddingRagged", Replaced(good, "[0,-1]", "[0]"),
       "expert 0 has 1 entries, the largest replica count is 2"},
      {"SlotsPerGpu", Replaced(good, "\"num_gpus\":1", "\"num_gpus\":1,\"slots_per_gpu\":[2]"),
       "slots_per_gpu of GPU 0 is 2, expected 3"},
      {"SlotsPerGpuMissing", Replaced(good, "\"num_gpus\":1", "\"num_gpus\":2"),
       "slots_per_gpu is missing, and 3 slots are not a multiple of 2 GPUs"},
      {"ShareText", SmallWithShares("\"half\""), "replica_share is a string"},
      {"ShareLayers", SmallWithShares("[[1,0,1],[1,0,1]]"),
       "replica_share has 2 layers, num_layers is 1"},
      {"ShareSlots", SmallWithShares("[[1,1]]"),
       "replica_share layer 0 has 2 entries, expected 3 slots"},
      {"ShareAbove1", SmallWithShares("[[1,1.5,-0.5]]"),
       "replica_share layer 0 slot 1 is 1.5, expected 0..1"},
      {"ShareNegative", SmallWithShares("[[1,-0.5,1]]"),
       "replica_share layer 0 slot 1 is -0.5, expected 0..1"},
      {"ShareSum", SmallWithShares("[[1,0.3,0.6]]"),
       "replica_share layer 0: the shares of expert 1 sum to 0.9, expected 1"},
      {"ShareTwice",
       Replaced(SmallWithShares("[[1,0,1]]"), "\"num_gpus\":1",
                "\"num_gpus\":1,\"replica_share\":[[1,0,1]]"),
       "key \"replica_share\" is given twice"},
      {"Deep", std::string(100000, '['), "nested deeper than 32"},
      {"Infinite", Replaced(good, "\"num_gpus\":1", "\"num_gpus\":1e999"), "1e999"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, PlacementJsonRefusedTest, ::testing::ValuesIn(AllRefused()),
                         [](const ::testing::TestParamInfo<Refused>& refused) {
                           return refused.param.name;
                         });

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

}  // namespace eplb::wire
