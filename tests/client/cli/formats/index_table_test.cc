#include "client/cli/formats/index_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace eplb {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<LayerAssignments> Read(const std::string& json) {
  return ReadLayerAssignments(wire::ParseJson(json).value());
}

TEST(LayerAssignmentsTest, LayersComeInTheOrderOfTheirNumbersWithTheirGaps) {
  const auto read = Read(R"({"initial_global_assignments":{"10":[2,0],"3":[0,1]}})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->layers, (LayerNumbers{3, 10}));
  EXPECT_EQ(read->slots(0, 1), 1);
  EXPECT_EQ(read->slots(1, 0), 2);
}

TEST(LayerAssignmentsTest, WhatIsNoneIsRefusedWithItsPlace) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({})", "initial_global_assignments is missing"},
      {R"({"initial_global_assignments":[]})", "expected rows by layer number"},
      {R"({"initial_global_assignments":{}})", "has no layers"},
      {R"({"initial_global_assignments":{"03":[0]}})", "has the key \"03\""},
      {R"({"initial_global_assignments":{"-1":[0]}})", "has the key \"-1\""},
      {R"({"initial_global_assignments":{"3":[]}})", "layer 3 has no entries"},
      {R"({"initial_global_assignments":{"3":[0,1],"4":[0]}})",
       "layer 4 has 1 entries, expected 2"},
      {R"({"num_slots":3,"initial_global_assignments":{"3":[0,1]}})", "has 2 entries, expected 3"},
      {R"({"initial_global_assignments":{"3":[0,-2]}})", "layer 3 entry 1 is -2"},
      {R"({"initial_global_assignments":{"3":[0,99999999999]}})", "entry 1 is 99999999999"},
      {R"({"initial_global_assignments":{"3":[0,99999999999999999999]}})",
       "[1] is 99999999999999999999, expected -1..2^31-1"},
      {R"({"initial_global_assignments":{"3":7}})", "layer 3 is an integer"},
      {R"({"initial_global_assignments":{"99999999999":[0]}})", "key \"99999999999\""},
      {R"({"num_slots":0,"initial_global_assignments":{"3":[0]}})", "expected 0 slots"},
      {R"({"num_slots":1000000000,"initial_global_assignments":{"3":[0]}})", "1000000000 slots"},
      {R"({"initial_global_assignments":{"3":[0,0.5]}})", "[1] is 0.5, expected an integer"}};
  for (const auto& [json, words] : refused) {
    EXPECT_THAT(std::string(Read(json).status().message()), HasSubstr(words)) << json;
  }
}

}  // namespace
}  // namespace eplb
