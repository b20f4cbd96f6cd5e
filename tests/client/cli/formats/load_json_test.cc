#include "client/cli/formats/load_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/cli/formats/refused.h"

namespace eplb {
namespace {

std::vector<LoadWindow> Parsed(const std::string& text) {
  return Must(ParseLoadJson("f", text)).windows;
}

TEST(LoadJsonTest, AMatrixInAnyLayoutIsOneWindow) {
  for (const char* text : {"[[1,2],[3,4]]", "[\n [1, 2],\n [3, 4]\n]\n",
                           R"({"format":"eplb.load.v1","load":[[1,2],[3,4]]})",
                           "{\n\"load\":[[1,2],[3,4]],\n\"format\":\"eplb.load.v1\"\n}"}) {
    const std::vector<LoadWindow> windows = Parsed(text);
    ASSERT_EQ(windows.size(), 1U) << text;
    ASSERT_TRUE(windows[0].load.is_counts());
    EXPECT_EQ(windows[0].load.counts()(1, 0), 3);
  }
}

TEST(LoadJsonTest, CountsAreExactAndRealsStayReals) {
  EXPECT_EQ(Parsed("[[9223372036854775807,0]]")[0].load.counts()(0, 0), INT64_MAX);
  const Load load = Parsed("[[3.0,1]]")[0].load;
  EXPECT_FALSE(load.is_counts());
  EXPECT_EQ(load.ToDouble()(0, 0), 3.0);
}

TEST(LoadJsonTest, LinesAreWindowsWithTheirSteps) {
  const std::vector<LoadWindow> windows = Parsed(
      "{\"first_step\":0,\"last_step\":9,\"load\":[[1,2]]}\n\n"
      "{\"last_step\":19,\"load\":[[3,4]],\"first_step\":10,\"note\":\"x\"}");
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[1].first_step, 10);
  EXPECT_EQ(windows[1].last_step, 19);
  EXPECT_EQ(windows[1].load.counts()(0, 1), 4);
  EXPECT_EQ(Parsed(R"({"first_step":5,"last_step":5,"load":[[1]]})")[0].first_step, 5);
}

TEST(LoadJsonTest, RandomWindowsComeBackEqual) {
  constexpr uint32_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 50; ++round) {
    const auto layers = static_cast<int64_t>(1 + random() % 4);
    const auto experts = static_cast<int64_t>(1 + random() % 9);
    std::vector<LoadMatrix> written;
    std::string text;
    for (int window = 0; window < 3; ++window) {
      LoadMatrix counts(layers, experts);
      for (Eigen::Index i = 0; i < counts.size(); ++i) {
        counts.data()[i] = static_cast<int64_t>(random() >> (5 + random() % 58));
      }
      absl::StrAppend(&text, "{\"first_step\":", window, ",\"last_step\":", window, ",\"load\":[");
      for (int64_t layer = 0; layer < layers; ++layer) {
        absl::StrAppend(&text, layer == 0 ? "[" : ",[");
        for (int64_t expert = 0; expert < experts; ++expert) {
          absl::StrAppend(&text, expert == 0 ? "" : ",", counts(layer, expert));
        }
        absl::StrAppend(&text, "]");
      }
      absl::StrAppend(&text, "]}\n");
      written.push_back(counts);
    }
    const std::vector<LoadWindow> windows = Parsed(text);
    ASSERT_EQ(windows.size(), written.size());
    for (size_t i = 0; i < written.size(); ++i) {
      ASSERT_TRUE((windows[i].load.counts() == written[i]).all());
    }
  }
}

TEST(LoadJsonTest, RefusalsNameTheFaultAndItsPlaceOnOneLine) {
  const std::string line = "{\"first_step\":0,\"last_step\":9,\"load\":[[1,2]]}\n";
  const Refused cases[] = {
      {"Ragged", "[[1,2],[1,2],[1,2],[1]]", "f: layer 3 has 1 experts, layer 0 has 2"},
      {"Negative", "[[1,2],[1,-2]]", "layer 1 expert 1 is -2"},
      {"NegativeReal", "[[1,2],[1,-2.5]]", "layer 1 expert 1"},
      {"Nan", "[[1,NaN]]", "line 1, column"},
      {"Infinity", "[[1,1e400]]", "1e400"},
      {"TooLarge", "[[1,2],[1,9223372036854775808]]",
       "layer 1 expert 1 is 9223372036854775808, counts are at most 2^63-1"},
      {"SumTooLarge", "[[9223372036854775807,1]]", "sum of layer 0"},
      {"Text", "[[1,\"2\"]]", "[0][1] is a string"},
      {"Null", "[[1,null]]", "[0][1] is null"},
      {"Flat", "[1,2]", "has 1 levels of arrays, expected 2"},
      {"Deep", "[[[[1,2]]]]", "has 4 levels of arrays, expected 2"},
      {"NoLayers", "[]", "no layers"},
      {"NoExperts", "[[]]", "1 layers x 0 experts"},
      {"Truncated", "[[1,2],[3", "line 1, column"},
      {"OtherFormat", R"({"format":"eplb.placement.v1"})", "is a placement, expected a load"},
      {"Map", R"({"physical_to_logical_map":[[0]]})", "is a placement, expected a load"},
      {"UnknownFormat", R"({"format":"x"})", "has the format \"x\"; tried a JSON matrix"},
      {"OtherObject", R"({"logical_count":[[1]]})", "without \"format\" or \"first_step\"; tried"},
      {"Scalar", "17", "is an integer; tried"},
      {"KeyTwice", R"({"format":"eplb.load.v1","load":[[1]],"load":[[2]]})",
       "key \"load\" is given twice"},
      {"NoLoad", R"({"format":"eplb.load.v1"})", "load is missing"},
      {"LoadIsText", R"({"format":"eplb.load.v1","load":"x"})", "load is a string"},
      {"BadLine", line + "{\"first_step\":10,\"last_step\":19,\"load\":[[1,2]\n",
       "f: line 2: column"},
      {"NegativeLine", line + "{\"first_step\":10,\"last_step\":19,\"load\":[[1,-2]]}\n",
       "line 2: load: layer 0 expert 1 is -2"},
      {"OtherShape", line + "{\"first_step\":10,\"last_step\":19,\"load\":[[1,2,3]]}\n",
       "line 2: load has 1 layers x 3 experts, the window before has 1 x 2"},
      {"StepsBackwards", "{\"first_step\":10,\"last_step\":19,\"load\":[[1,2]]}\n" + line,
       "line 2: first_step is 0, the window before covers steps 10..19"},
      {"StepsOverlap", line + "{\"first_step\":9,\"last_step\":19,\"load\":[[1,2]]}\n",
       "f: line 2: first_step is 9, the window before covers steps 0..9"},
      {"StepsSwapped", R"({"first_step":9,"last_step":0,"load":[[1]]})", "first_step is 9"},
      {"StepMissing", R"({"first_step":9,"load":[[1]]})", "last_step is missing"},
      {"StepIsReal", R"({"first_step":9.0,"last_step":10,"load":[[1]]})", "first_step is a number"},
      {"OtherLine", line + "[[1,2]]\n", "line 2: is an array; tried"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseLoadJson("f", refused.bytes).status());
  }
}

}  // namespace
}  // namespace eplb
