#include "client/cli/formats/engine_formats.h"
#include "tests/client/cli/formats/refused.h"

namespace eplb {
namespace {

TEST(SglangFormatTest, SlotsAreReadAndNothingElseIsKnown) {
  const auto parts = Must(FindPlacementFormat("sglang")->parse(
      "f", R"({"physical_to_logical_map":[[0,1,0],[1,1,0]]})"));
  EXPECT_EQ(parts.slots.rows(), 2);
  EXPECT_EQ(parts.slots(1, 0), 1);
  EXPECT_FALSE(parts.ranks.has_value());
  EXPECT_FALSE(parts.frame.num_gpus.has_value());
}

TEST(SglangFormatTest, StepsOfALoadAreWindows) {
  const auto value = wire::ParseJson(R"({"logical_count":[[[1,2],[0,0]],[[3,4],[0,0]]]})");
  const auto windows = Must(SglangLoad(*value)).windows;
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[1].first_step, 1);
  EXPECT_EQ(windows[1].load.counts()(0, 1), 4);
  EXPECT_EQ(windows[1].load.counts()(1, 1), 0);  // a dense layer
  EXPECT_EQ(SglangLoad(*wire::ParseJson(R"({"logical_count":[[5,6]]})"))->windows.size(), 1U);
  EXPECT_EQ(SglangLoad(*wire::ParseJson("[[[1,2],[0,0]],[[3,4],[0,0]]]"))->windows.size(), 2U);
}

TEST(SglangFormatTest, PlacementsThatAreNoneAreRefused) {
  const std::string good = R"({"physical_to_logical_map":[[0,1,0],[1,1,0]]})";
  const Refused cases[] = {
      {"Empty", "", "empty"},
      {"Truncated", good.substr(0, 40), "line 1, column"},
      {"Trailing", good + "]", "line 1, column"},
      {"List", "[[0,1]]", "expected a JSON object with \"physical_to_logical_map\""},
      {"Load", R"({"logical_count":[[1,2]]})", "its logical_count is a load"},
      {"Ours", With(good, "{", "{\"format\":\"eplb.placement.v1\","), "without \"format\""},
      {"KeyTwice", With(good, "}", ",\"physical_to_logical_map\":[[0]]}"), "given twice"},
      {"Ragged", With(good, "[1,1,0]", "[1,0]"), "layer 1 has 2 entries, layer 0 has 3"},
      {"Text", With(good, "[1,1,0]", "[1,\"1\",0]"), "[1][1] is a string"},
      {"Null", With(good, "[1,1,0]", "null"), "[1] is null"},
      {"Negative", With(good, "[1,1,0]", "[1,-7,0]"), "layer 1 entry 1 is -7"},
      {"Nan", With(good, "[1,1,0]", "[1,NaN,0]"), "line 1, column"},
      {"NoLayers", R"({"physical_to_logical_map":[]})", "1 levels of arrays, expected 2"},
      {"NoSlots", R"({"physical_to_logical_map":[[],[]]})", "has no entries"},
      {"Cube", R"({"physical_to_logical_map":[[[0]]]})", "3 levels of arrays, expected 2"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, FindPlacementFormat("sglang")->parse("f", refused.bytes).status());
  }
}

TEST(SglangFormatTest, LoadsThatAreNoneAreRefused) {
  const Refused cases[] = {
      {"Ragged", R"({"logical_count":[[1,2],[3]]})", "layer 1 has 1 experts, layer 0 has 2"},
      {"RaggedStep", R"({"logical_count":[[[1,2],[3,4]],[[1,2]]]})",
       "step 1 has 1 layers, step 0 has 2"},
      {"RaggedInStep", R"({"logical_count":[[[1,2],[3,4]],[[1,2],[3]]]})",
       "step 1 layer 1 has 1 experts, layer 0 has 2"},
      {"Negative", R"({"logical_count":[[[1,2]],[[1,-2]]]})",
       "step 1: load: layer 0 expert 1 is -2"},
      {"TooLarge", R"({"logical_count":[[[1,2]],[[1,9223372036854775808]]]})",
       "step 1: layer 0 expert 1 is 9223372036854775808"},
      {"Text", R"({"logical_count":"x"})", "logical_count is a string"},
      {"Deep", R"({"logical_count":[[[[1]]]]})", "4 levels"},
      {"NoExperts", R"({"logical_count":[[[]]]})", "0 experts"},
      {"NoSteps", R"({"logical_count":[]})", "no layers"},
      {"NoLayers", R"({"logical_count":[[],[]]})", "0 experts"},
      {"Ours", R"({"format":"eplb.load.v1","logical_count":[[1]]})", "without \"format\""},
      {"NoKey", R"({"load":[[1]]})", "\"logical_count\""},
      {"Map", R"({"physical_to_logical_map":[[0]]})", "is a placement of sglang, for `eplbctl"},
      {"BareText", R"([["a"]])", "is a string"},
  };
  for (const Refused& refused : cases) {
    const absl::Status status = SglangLoad(*wire::ParseJson(refused.bytes)).status();
    ExpectRefusal(refused, absl::Status(status.code(), "f: " + std::string(status.message())));
  }
}

}  // namespace
}  // namespace eplb
