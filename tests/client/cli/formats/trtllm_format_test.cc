#include <gmock/gmock.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "client/cli/formats/engine_formats.h"
#include "tests/client/cli/formats/random_placement.h"
#include "tests/client/cli/formats/refused.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

constexpr char kGoodTrtllm[] =
    "num_slots: 3\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
    "  3: [0, 1, 0]\n  4: [1, 1, 0]\n  5: [0, 1, 1]\n";

TEST(TrtllmFormatTest, KeysAreTheModelsLayersInAnyOrder) {
  for (const std::string& text :
       {std::string(kGoodTrtllm),
        std::string("initial_global_assignments:\n  5:\n  - 0\n  - 1\n  - 1\n  3: [0,1,0]\n"
                    "  4: [1,1,0]\nnum_slots: 3 # of all ranks\nunknown: {a: [1, x]}\n"),
        std::string(R"({"num_slots":3,"initial_global_assignments":)"
                    R"({"3":[0,1,0],"4":[1,1,0],"5":[0,1,1]}})")}) {
    const auto parts = Must(FindPlacementFormat("trtllm")->parse("f", text));
    EXPECT_EQ(parts.layers, (LayerNumbers{3, 4, 5}));
    ASSERT_EQ(parts.slots.rows(), 3);
    EXPECT_EQ(parts.slots(1, 0), 1);
    EXPECT_EQ(parts.slots(2, 2), 1);
  }
}

TEST(TrtllmFormatTest, LayersMayHaveGapsAndRowsImplyTheNumberOfSlots) {
  const auto parts = Must(ParseTrtllmPlacement(
      "initial_global_assignments:\n  5: [0, 1, 1]\n  1: [0, 1, 0]\n  3: [1, 1, 0]\n"));
  EXPECT_EQ(parts.layers, (LayerNumbers{1, 3, 5}));
  ASSERT_EQ(parts.slots.cols(), 3);
  EXPECT_EQ(parts.slots(1, 0), 1);
  EXPECT_EQ(*WriteTrtllmPlacement(*MakePlacement(parts, {}), {.layers = parts.layers}),
            "num_slots: 3\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
            "  1: [0, 1, 0]\n  3: [1, 1, 0]\n  5: [0, 1, 1]\n");
}

TEST(TrtllmFormatTest, DeepSeekV3HasLayers3To60) {
  const Topology topology =
      *Topology::Make({.num_layers = 58, .num_experts = 256, .num_slots = 288, .num_gpus = 32});
  const auto yaml =
      WriteTrtllmPlacement(Placement::Static(topology), {.layers = Consecutive(3, 58)});
  ASSERT_TRUE(yaml.ok());
  EXPECT_THAT(*yaml, HasSubstr("\n  3: ["));
  EXPECT_THAT(*yaml, HasSubstr("\n  60: ["));
  EXPECT_THAT(*yaml, ::testing::Not(HasSubstr("\n  61: [")));
  const auto parts = Must(FindPlacementFormat("trtllm")->parse("f", *yaml));
  EXPECT_EQ(*MakePlacement(parts, {.num_gpus = 32}), Placement::Static(topology));
  const absl::Status unknown = WriteTrtllmPlacement(Placement::Static(topology), {}).status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("--first-layer"));
}

TEST(TrtllmFormatTest, WhatIsNoneIsRefused) {
  const std::string good = kGoodTrtllm;
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = absl::StrCat("*a", i - 1);
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [", before);
    for (int j = 0; j < 8; ++j) bomb += "," + before;
    bomb += "]\n";
  }
  const Refused cases[] = {
      {"Empty", "", "empty"},
      {"Comment", "# nothing\n", "empty"},
      {"Scalar", "hello", "expected YAML with num_slots"},
      {"List", "- 1\n- 2\n", "expected YAML with num_slots"},
      {"Truncated", good.substr(0, good.size() - 3), "not YAML"},
      {"Tab", With(good, "  3:", "\t3:"), "not YAML"},
      {"Brackets", std::string(100000, '['), "not YAML"},
      {"Braces", "a: " + std::string(100000, '{'), "not YAML"},
      {"Nested", std::string(40, '[') + std::string(40, ']'), "nested deeper"},
      {"Bomb", bomb + good, "line 1, column"},
      {"Alias", With(With(good, "[0, 1, 0]", "&row [0, 1, 0]"), "[0, 1, 1]", "*row"),
       "line 4, column"},
      {"MergeKey", "base: &b {num_slots: 3}\n<<: *b\n", "an anchor"},
      {"Tag", With(good, "num_slots: 3", "num_slots: !!python/object:os.system 3"), "a tag"},
      {"Documents", good + "---\n" + good, "more than one YAML document"},
      {"KeyTwice", With(good, "  4:", "  3:"), "key \"3\" is given twice"},
      {"TopKeyTwice", "num_slots: 3\n" + good, "key \"num_slots\" is given twice"},
      {"ListAsKey", "? [1, 2]\n: 3\n" + good, "a key that is no single word"},
      {"NullAsKey", "~: 3\n" + good, "a key that is null"},
      {"SlotsText", With(good, "num_slots: 3", "num_slots: \"3\""), "num_slots is a string"},
      {"SlotsReal", With(good, "num_slots: 3", "num_slots: 3.0"), "num_slots is a string"},
      {"UpdatesNegative", With(good, "iter: 0", "iter: -1"), "layer_updates_per_iter is -1"},
      {"NoAssignments", "num_slots: 3\n", "initial_global_assignments is missing"},
      {"AssignmentsList", "num_slots: 3\ninitial_global_assignments: [[0,1,0]]\n", "has no layers"},
      {"Nan", With(good, "[1, 1, 0]", "[1, .nan, 0]"), "layer 4[1] is a string"},
      {"NotUtf8", With(good, "num_slots", "\xff\xfe"), "f: "},
      {"Nul", good + std::string(3, '\0'), "f: "},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, FindPlacementFormat("trtllm")->parse("f", refused.bytes).status());
  }
}

TEST(TrtllmFormatTest, AnExpertOutOfRangeIsNamedWithItsPlace) {
  const auto parts =
      FindPlacementFormat("trtllm")->parse("f", With(kGoodTrtllm, "[1, 1, 0]", "[1, 2, 9]"));
  ASSERT_TRUE(parts.ok());
  EXPECT_THAT(std::string(MakePlacement(*parts, {}).status().message()),
              HasSubstr("layer 1 slot 2 holds expert 9, but 3 slots hold experts 0..2"));
}

TEST(TrtllmFormatTest, TheBalancerInTheOptionsOfTheLlmApiIsFound) {
  const std::string options =
      "backend: pytorch\nmoe_config:\n  backend: WIDEEP\n  load_balancer:\n    num_slots: 2\n"
      "    layer_updates_per_iter: 0\n    initial_global_assignments:\n      3: [1, 0]\n";
  const auto parts = Must(FindPlacementFormat("trtllm")->parse("f", options));
  EXPECT_EQ(parts.slots(0, 0), 1);
  EXPECT_EQ(parts.layers, LayerNumbers{3});
  const Refused cases[] = {
      {"Path", "moe_config:\n  load_balancer: ./balancer.yaml\n",
       "moe_config.load_balancer names the file \"./balancer.yaml\", expected that file itself"},
      {"None", "moe_config:\n  backend: x\n",
       "has neither initial_global_assignments nor moe_config.load_balancer"},
      {"List", "moe_config:\n  load_balancer: [1]\n", "expected the keys of a balancer"},
      {"Keys", "moe_config:\n  load_balancer: {a: 1}\n", "initial_global_assignments is missing"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, FindPlacementFormat("trtllm")->parse("f", refused.bytes).status());
  }
}

}  // namespace

}  // namespace eplb
