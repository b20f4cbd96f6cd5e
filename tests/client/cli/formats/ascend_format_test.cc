#include "client/cli/formats/engine_formats.h"
#include "tests/client/cli/formats/random_placement.h"
#include "tests/client/cli/formats/refused.h"

namespace eplb {
namespace {

constexpr char kGoodAscend[] =
    R"({"moe_layer_count":2,"layer_list":[)"
    R"({"layer_id":0,"device_count":2,"device_list":[{"device_id":0,"device_expert":[0,1]},)"
    R"({"device_id":1,"device_expert":[2]}]},)"
    R"({"layer_id":1,"device_count":2,"device_list":[{"device_id":0,"device_expert":[2,0]},)"
    R"({"device_id":1,"device_expert":[1]}]}]})";

TEST(AscendFormatTest, SlotsAreNumberedDeviceByDevice) {
  const auto parts = Must(FindPlacementFormat("ascend")->parse("f", kGoodAscend));
  EXPECT_EQ(parts.frame.num_gpus, 2);
  ASSERT_EQ(parts.slots.cols(), 3);
  EXPECT_EQ(parts.slots(1, 0), 2);
  EXPECT_EQ(parts.slots(1, 2), 1);
  const auto placement = Must(MakePlacement(parts, parts.frame));
  EXPECT_EQ(*WriteAscendPlacement(placement, {}), std::string(kGoodAscend) + "\n");
}

TEST(AscendFormatTest, CountsAndIdsThatTheListsImplyMayBeMissing) {
  const auto parts = Must(ParseAscendPlacement(
      R"({"strategy_version":3,"layer_list":[)"
      R"({"device_list":[{"device_expert":[0,1]},{"device_expert":[2]}]},)"
      R"({"device_list":[{"device_id":0,"device_expert":[2,0]},{"device_expert":[1]}]}]})"));
  EXPECT_EQ(*WriteAscendPlacement(*MakePlacement(parts, parts.frame), {}),
            std::string(kGoodAscend) + "\n");
}

TEST(AscendLoadTest, ExpertsWithoutAnEntryGotNoTokens) {
  const auto dense = Must(ParseAscendLoad("f", R"({"aggregated_load":{"0":{"0":1,"1":5}}})"));
  EXPECT_EQ(dense.windows.front().load.counts()(0, 1), 5);
  EXPECT_TRUE(dense.notes.empty());
  const auto sparse = Must(ParseAscendLoad(
      "f", R"({"strategy_version":3,"aggregated_load":{"5":{"3":7},"1":{"1":5,"0":2.5}}})"));
  EXPECT_EQ(sparse.layers, (LayerNumbers{1, 5}));
  const Load& load = sparse.windows.front().load;
  EXPECT_FALSE(load.is_counts());
  EXPECT_EQ(load.num_experts(), 4);
  EXPECT_EQ(load.ToDouble()(0, 0), 2.5);
  EXPECT_EQ(load.ToDouble()(1, 3), 7);
  EXPECT_EQ(load.ToDouble()(1, 0), 0);
  ASSERT_EQ(sparse.notes.size(), 1U);
  EXPECT_THAT(sparse.notes.front(), ::testing::HasSubstr("number of experts, 4,"));
}

TEST(AscendLoadTest, WhatIsNoneIsRefused) {
  const std::string good = R"({"aggregated_load":{"0":{"0":1,"1":5}}})";
  const Refused cases[] = {
      {"Empty", "", "empty"},
      {"Other", R"({"load":[[1]]})", "is no load of ascend"},
      {"List", R"({"aggregated_load":[[1,5]]})", "is no load of ascend"},
      {"NoLayers", R"({"aggregated_load":{}})", "is no load of ascend"},
      {"NoExperts", R"({"aggregated_load":{"0":{}}})", "is no load of ascend"},
      {"LayerKey", With(good, "\"0\":{", "\"x\":{"), "key \"x\", expected a number in 0.."},
      {"PaddedKey", With(good, "\"1\"", "\"01\""), "layer 0 has the key \"01\", expected"},
      {"HugeExpert", With(good, "\"1\"", "\"1000000000\""), "expected a number in 0..4095"},
      {"LayerIsList", R"({"aggregated_load":{"0":[1,5]}})", "layer 0 is no object"},
      {"Text", With(good, ":5", ":\"5\""), "layer 0 expert 1 is no number"},
      {"Negative", With(good, ":5", ":-5"), "layer 0 expert 1 is -5"},
      {"KeyTwice", With(good, "\"1\"", "\"0\""), "given twice"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseAscendLoad("f", refused.bytes).status());
  }
}

TEST(AscendFormatTest, WhatIsNoneIsRefused) {
  const std::string good = kGoodAscend;
  const Refused cases[] = {
      {"Empty", "", "empty"},
      {"Truncated", good.substr(0, 100), "line 1, column"},
      {"List", "[]", "layer_list is missing"},
      {"Other", R"({"physical_to_logical_map":[[0]]})", "layer_list is missing"},
      {"NoList", R"({"moe_layer_count":2})", "layer_list is missing"},
      {"ListOfNumbers", R"({"moe_layer_count":2,"layer_list":[1,2]})",
       "layer_list is no list of objects"},
      {"ListOfLists", R"({"moe_layer_count":1,"layer_list":[[{}]]})", "no list of objects"},
      {"ListMixed", R"({"moe_layer_count":2,"layer_list":[{},1]})", "no list of objects"},
      {"ListEmpty", R"({"moe_layer_count":0,"layer_list":[]})", "no list of objects"},
      {"ListText", R"({"moe_layer_count":0,"layer_list":"x"})", "no list of objects"},
      {"LayerCount", With(good, "count\":2", "count\":3"),
       "moe_layer_count is 3, layer_list has 2 entries"},
      {"HugeCount", With(good, "count\":2", "count\":1000000000"), "is 1000000000, layer_list has"},
      {"DeviceCount", With(good, "\"device_count\":2", "\"device_count\":4"),
       "layer 0: device_count is 4, device_list has 2 entries"},
      {"DeviceCountText", With(good, "\"device_count\":2", "\"device_count\":\"2\""),
       "layer 0: device_count is a string"},
      {"LayerId", With(good, "\"layer_id\":1", "\"layer_id\":3"), "layer 1: layer_id is 3"},
      {"LayerIdTwice", With(good, "\"layer_id\":1", "\"layer_id\":0"), "layer 1: layer_id is 0"},
      {"DeviceId", With(good, "\"device_id\":1", "\"device_id\":0"),
       "layer 0: device 1: device_id is 0, expected 1"},
      {"NoExperts", With(good, "\"device_expert\":[2]", "\"x\":[2]"),
       "layer 0: device 1: device_expert is missing"},
      {"KeyTwice", With(good, "\"device_id\":1,", "\"device_id\":1,\"device_id\":1,"),
       "key \"device_id\" is given twice"},
      {"Unequal", With(With(good, "[0,1]", "[0]"), "[2]", "[1,2]"),
       "layer 0: device 0 holds 1 experts, expected 2 of 3 on 2 devices"},
      {"Ragged", With(good, "[2,0]", "[2]"), "layer 1: has 2 slots on 2 devices, layer 0 has 3"},
      {"NoSlots", With(With(good, "[0,1]", "[]"), "[2]", "[]"),
       "layer 0: device 0: device_expert has no"},
      {"Negative", With(good, "[2,0]", "[-5,0]"), "layer 1: device 0: device_expert entry 0 is -5"},
      {"Nan", With(good, "[2,0]", "[NaN,0]"), "line 1, column"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, FindPlacementFormat("ascend")->parse("f", refused.bytes).status());
  }
}

TEST(AscendFormatTest, AnExpertInNoSlotIsNamed) {
  const auto parts =
      Must(FindPlacementFormat("ascend")->parse("f", With(kGoodAscend, "[2,0]", "[2,2]")));
  EXPECT_THAT(std::string(MakePlacement(parts, parts.frame).status().message()),
              ::testing::HasSubstr("layer 1: expert 0 is in no slot"));
}

}  // namespace
}  // namespace eplb
