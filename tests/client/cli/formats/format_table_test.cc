#include "client/cli/formats/format_table.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/client/cli/formats/test_files.h"

namespace eplb {
namespace {

TEST(PlacementContentTest, TheContentTellsTheFormat) {
  EXPECT_EQ(DetectPlacementFormat("a", "\x80\2.")->name, "sglang");  // a pickle
  const std::pair<const char*, const char*> files[] = {
      {R"({"format":"eplb.placement.v1"})", "eplb"},
      {R"({"physical_to_logical_map":[[0,1]]})", "sglang"},
      {R"({"physical_to_logical_map":[[0,1]],"logical_to_physical_map":[[[0],[1]]]})", "deepseek"},
      {R"({"layer_list":[]})", "ascend"},
      {"initial_global_assignments:\n  0: [0, 1]\n", "trtllm"},
      {"0,1\n1,0\n", "deepseek"}};
  for (const auto& [bytes, name] : files) {
    const absl::StatusOr<PlacementFormat> format = DetectPlacementFormat("a", bytes);
    ASSERT_TRUE(format.ok()) << bytes << ": " << format.status();
    EXPECT_EQ(format->name, name) << bytes;
  }
  EXPECT_EQ(DetectPlacementFormat("a", "once upon a time").status().message().substr(0, 19),
            "a: is no placement;");
}

class ForeignPlacementTest : public FilesTest {};

TEST_F(ForeignPlacementTest, OnlyAnotherSystemsFileGetsACommand) {
  const absl::Status error = absl::InvalidArgumentError("line 1, column 3: syntax error");
  const std::string theirs = Write("b.yaml", "initial_global_assignments:\n  0: [0, 1]\n");
  EXPECT_EQ(NameForeignPlacement(theirs, error).message(),
            theirs + ": is a placement of trtllm, convert it: eplbctl convert --from trtllm " +
                theirs + " OUT.json");
  EXPECT_EQ(NameForeignPlacement(Write("a.json", R"({"format":1})"), error), error);
  EXPECT_EQ(NameForeignPlacement("/nonexistent", error), error);
}

}  // namespace
}  // namespace eplb
