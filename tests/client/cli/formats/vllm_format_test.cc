#include <random>

#include "absl/strings/str_cat.h"

#include "client/cli/formats/engine_formats.h"
#include "tests/client/cli/formats/random_placement.h"
#include "tests/client/cli/formats/refused.h"

namespace eplb {
namespace {

constexpr char kMapping[] =
    R"({"record_type":"eplb_initial_mapping","version":1,"num_redundant_experts":1,"num_slots":3,)"
    R"("initial_global_assignments":{"0":[0,1,0],"1":[1,1,0]}})"
    "\n";
constexpr char kMeta[] =
    R"({"record_type":"eplb_load_meta","version":1,"model":"m","num_ranks":3,"num_groups":2,)"
    R"("num_nodes":1,"num_layers":2,"num_redundant_experts":1})"
    "\n";
constexpr char kStats[] =
    R"({"record_type":"eplb_load_stats","version":1,"step":100,"num_ranks":3,)"
    R"("expert_load":[[5,7,11],[2,3,4]],"p2l_map":[[0,1,0],[1,1,0]]})"
    "\n";

TEST(VllmFormatTest, TheMappingCountsMoeLayersFromZero) {
  const auto parts = Must(ParseVllmPlacement("f", kMapping));
  EXPECT_EQ(parts.slots(1, 1), 1);
  EXPECT_EQ(parts.num_experts, 2);
  EXPECT_FALSE(parts.frame.num_gpus.has_value());
  EXPECT_TRUE(parts.layers.empty());
  const auto with_meta = Must(ParseVllmPlacement("f", std::string(kMeta) + kStats + kMapping));
  EXPECT_EQ(with_meta.frame.num_gpus, 3);
  EXPECT_EQ(with_meta.frame.num_groups, 2);
}

TEST(VllmFormatTest, LoadsOfSlotsGoToTheExpertsTheyHeld) {
  // The same loads, after slots 0 and 1 of layer 0 changed places.
  const std::string later =
      With(With(With(kStats, "100", "200"), "[5,7,11]", "[7,5,11]"), "[[0,1,0]", "[[1,0,0]");
  const auto file = Must(ParseVllmLoad("f", std::string(kMeta) + kStats + later));
  ASSERT_EQ(file.windows.size(), 2U);
  EXPECT_EQ(file.windows[0].first_step, 100);
  EXPECT_EQ(file.windows[1].last_step, 200);
  EXPECT_TRUE(file.notes.empty());
  for (const LoadWindow& window : file.windows) {
    ASSERT_TRUE(window.load.is_counts());
    EXPECT_EQ(window.load.num_experts(), 2);
    EXPECT_EQ(window.load.counts()(0, 0), 16);
    EXPECT_EQ(window.load.counts()(0, 1), 7);
    EXPECT_EQ(window.load.counts()(1, 0), 4);
    EXPECT_EQ(window.load.counts()(1, 1), 5);
  }
  const auto reals = Must(ParseVllmLoad("f", With(kStats, "[5,", "[5.5,")));
  EXPECT_FALSE(reals.windows.front().load.is_counts());
  EXPECT_EQ(reals.windows.front().load.ToDouble()(0, 0), 16.5);
}

TEST(VllmFormatTest, RandomLoadsAddUpAsTheirPlacementSays) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 50; ++round) {
    const Placement placement = RandomPlacement(random, true, true);
    const IndexMatrix& slots = placement.physical_to_logical_map();
    LoadMatrix expected = LoadMatrix::Zero(slots.rows(), placement.topology().num_experts());
    std::string load;
    std::string map;
    for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
      load += layer == 0 ? "[" : "],[";
      map += layer == 0 ? "[" : "],[";
      for (Eigen::Index slot = 0; slot < slots.cols(); ++slot) {
        const auto count = static_cast<int64_t>(random() >> 30);
        expected(layer, slots(layer, slot)) += count;
        absl::StrAppend(&load, slot == 0 ? "" : ",", count);
        absl::StrAppend(&map, slot == 0 ? "" : ",", slots(layer, slot));
      }
    }
    const auto windows = Must(ParseVllmLoad(
        "f", absl::StrCat(R"({"record_type":"eplb_load_stats","version":1,"step":0,)",
                          "\"expert_load\":[", load, "]],\"p2l_map\":[", map, "]]}")));
    ASSERT_TRUE((windows.windows.front().load.counts() == expected).all());
  }
}

TEST(VllmFormatTest, WhatTheMapsImplyMayBeMissing) {
  const auto parts =
      Must(ParseVllmPlacement("f", R"({"record_type":"eplb_load_meta","version":1,"model":"m"})"
                                   "\n"
                                   R"({"record_type":"eplb_initial_mapping","version":1,)"
                                   R"("initial_global_assignments":{"0":[0,1,0],"1":[1,1,0]}})"));
  EXPECT_EQ(parts.num_experts, 2);
  EXPECT_EQ(parts.slots.cols(), 3);
}

TEST(VllmFormatTest, AJobThatWasScaledBeforeItsFirstRecordIsNoted) {
  const auto file = Must(ParseVllmLoad(
      "f", With(With(kMeta, "ranks\":3", "ranks\":2"), "experts\":1", "experts\":0") + kStats));
  EXPECT_THAT(file.notes,
              ::testing::ElementsAre("eplb_load_meta has num_ranks 2, the first record has 3"));
}

// Benchmarks write into the same log; their records have no version.
TEST(VllmFormatTest, RecordsOfOtherTypesAreSkippedWithANote) {
  const std::string log = absl::StrCat(R"({"record_type":"session_metadata","host":"a"})", "\n",
                                       kMeta, R"({"record_type":"bench_run_start"})", "\n", kStats,
                                       R"({"record_type":"bench_run_start"})", "\n", kMapping);
  const std::string note =
      "skipped records of other types: 2 \"bench_run_start\", 1 \"session_metadata\"";
  const auto load = Must(ParseVllmLoad("f", log));
  EXPECT_EQ(load.windows.size(), 1U);
  EXPECT_THAT(load.notes, ::testing::ElementsAre(note));
  const auto parts = Must(ParseVllmPlacement("f", log));
  EXPECT_THAT(parts.notes, ::testing::ElementsAre(note));
  // A stranger cannot make the note long.
  std::string many = kStats;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&many, "{\"record_type\":\"t", i, "\"}\n");
  EXPECT_THAT(ParseVllmLoad("f", many)->notes.front(), ::testing::EndsWith(" and 12 more"));
}

TEST(VllmFormatTest, PlacementsThatAreNoneAreRefused) {
  const std::string good = kMapping;
  const Refused cases[] = {
      {"Empty", "\n", "is empty"},
      {"Truncated", good.substr(0, 60), "line 1: column"},
      {"SecondLine", kMeta + good.substr(0, 60), "line 2: column"},
      {"List", "[[0,1]]", "line 1: is no record of vllm"},
      {"Other", R"({"physical_to_logical_map":[[0]]})", "is no record of vllm"},
      {"Type", With(good, "eplb_initial_mapping", "eplb_other"),
       "has no eplb_initial_mapping; skipped records of other types: 1 \"eplb_other\"; tried "
       "eplb_load_meta, eplb_load_stats and"},
      {"TypeNumber", With(good, "\"eplb_initial_mapping\"", "7"), "record_type is an integer"},
      {"Version", With(good, "\"version\":1", "\"version\":2"), "version is 2, expected 1"},
      {"NoVersion", With(good, "\"version\":1,", ""), "version is missing"},
      {"NoMapping", kStats, "has no eplb_initial_mapping"},
      {"Twice", good + good, "line 2: is a second eplb_initial_mapping"},
      {"KeyTwice", With(good, "\"1\":", "\"0\":"), "key \"0\" is given twice"},
      {"FirstLayer", With(With(good, "\"1\":", "\"2\":"), "\"0\":", "\"1\":"),
       "has layers 1,2, vllm counts MoE layers from 0"},
      {"Gap", With(good, "\"1\":", "\"2\":"), "has layers 0,2, vllm counts MoE layers from 0"},
      {"Redundant", With(good, "experts\":1", "experts\":3"),
       "num_redundant_experts 3, but the map holds 2"},
      {"Negative", With(good, "experts\":1", "experts\":-1"), "num_redundant_experts is -1"},
      {"Nan", With(good, "[1,1,0]", "[1,NaN,0]"), "line 1: column"},
      {"MetaLayers", With(kMeta, "layers\":2", "layers\":3") + good,
       "eplb_load_meta has 3 layers, there are 2"},
      {"MetaRedundant", With(kMeta, "experts\":1", "experts\":0") + good,
       "eplb_load_meta has num_redundant_experts 0, but the map holds 2 experts in 3 slots"},
      {"MetaRanksDivide", With(kMeta, "ranks\":3", "ranks\":2") + good,
       "eplb_load_meta has num_ranks 2, which do not divide the 3 slots of the map"},
      {"MetaRanks", With(kMeta, "ranks\":3", "ranks\":0") + good, "num_ranks is 0"},
      {"MetaTwice", std::string(kMeta) + kMeta + good, "line 2: is a second eplb_load_meta"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseVllmPlacement("f", refused.bytes).status());
  }
}

TEST(VllmFormatTest, LoadsThatAreNoneAreRefused) {
  const std::string good = kStats;
  const Refused cases[] = {
      {"NoStats", kMapping, "has no eplb_load_stats"},
      {"Truncated", good + good.substr(0, 50), "line 2: column"},
      {"Steps", good + good, "line 2: first_step is 100, the window before covers steps 100..100"},
      {"Negative step", With(good, ":100", ":-1"), "step is -1"},
      {"NoMap", With(good, "p2l_map", "p2l"), "p2l_map is missing"},
      {"NoLoad", With(good, "expert_load", "load"), "expert_load is missing"},
      {"Shape", With(good, "[1,1,0]]}", "[1,1,0],[1,1,0]]}"),
       "expert_load has 2 layers x 3 slots, p2l_map has 3 x 3"},
      {"Ragged", With(good, "[2,3,4]", "[2,3]"), "layer 1 has 2"},
      {"RaggedMap", With(good, "[1,1,0]]}", "[1,0]]}"), "p2l_map layer 1 has 2 entries"},
      {"Count", With(good, "[2,3,4]", "[2,-3,4]"), "layer 1 expert 1 is -3"},
      {"Nan", With(good, "[2,3,4]", "[2,NaN,4]"), "line 1: column"},
      {"Overflow", With(good, "[2,3,4]", "[9223372036854775807,1,0]"), "sum of layer 1"},
      {"Id", With(good, "[1,1,0]]}", "[1,3,0]]}"), "p2l_map layer 1 slot 1 is 3, expected 0..2"},
      {"NegativeId", With(good, "[1,1,0]]}", "[1,-1,0]]}"), "layer 1 slot 1 is -1"},
      {"HugeId", With(good, "[1,1,0]]}", "[1,2147483647,0]]}"), "slot 1 is 2147483647"},
      {"Missing", With(good, "[1,1,0]]}", "[1,1,1]]}"), "layer 1: expert 0 is in no slot"},
      {"Layers", good + With(With(With(good, "100", "200"), ",[2,3,4]", ""), ",[1,1,0]", ""),
       "line 2: load has 1 layers x 2 experts, the window before has 2 x 2"},
      {"MetaLayers", With(kMeta, "layers\":2", "layers\":58") + good, "has 58 layers"},
      {"MetaRedundant", With(kMeta, "experts\":1", "experts\":0") + good,
       "eplb_load_meta has num_redundant_experts 0, but the map holds 2 experts in 3 slots"},
      {"MetaRanks", With(kMeta, "ranks\":3", "ranks\":2") + With(good, "\"num_ranks\":3,", ""),
       "eplb_load_meta has num_ranks 2, which do not divide the 3 slots"},
      {"Ranks", With(good, "ranks\":3", "ranks\":2"),
       "eplb_load_stats has num_ranks 2, which do not divide the 3 slots"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseVllmLoad("f", refused.bytes).status());
  }
}

}  // namespace
}  // namespace eplb
