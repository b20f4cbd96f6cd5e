#include <gmock/gmock.h>

#include "base/files.h"
#include "base/json_value.h"
#include "client/cli/commands.h"
#include "proto/wire/placement_json.h"
#include "tests/client/cli/explained_job.h"

namespace eplb::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

using DiffTest = ExplainedJobTest;

TEST_F(DiffTest, DiffTellsTransfersAndEndsWith8) {
  const Output output = RunDiff({.query = daemon_.Options(), .from = "v1", .to = "now"}, kPlain);
  EXPECT_EQ(output.exit_code, kConditionNotMet) << output.message;
  EXPECT_THAT(output.out, Says("version 1 -> version 3", "1 layer differ", "layer 0"));
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
}

TEST_F(DiffTest, DiffOfEqualPlacementsEndsWith0AlsoBetweenFileAndDaemon) {
  const std::string path = Path("p.json");
  ASSERT_TRUE(WriteFileAtomically(path, wire::PlacementToJson(ExampleAfter()) + "\n").ok());
  EXPECT_THAT(TextOf(RunDiff({.query = daemon_.Options(), .from = path, .to = "v3"}, kPlain)),
              HasSubstr("are equal"));
}

TEST_F(DiffTest, DiffUnderALoadTellsBalancedness) {
  const std::string path = Path("load.json");
  ASSERT_TRUE(WriteFileAtomically(path, "[[10,40,10,10],[0,0,0,0]]\n").ok());
  const Output output = RunDiff(
      {.query = daemon_.Options(Format::kJson), .from = "v1", .to = "v3", .load = path}, kPlain);
  const absl::StatusOr<wire::JsonValue> json = wire::ParseJson(output.out);
  ASSERT_TRUE(json.ok()) << output.message;
  // GPUs 25 20 25, then 15 30 25.
  EXPECT_DOUBLE_EQ(json->Find("balancedness_from")->real, 70.0 / 3 / 25);
  EXPECT_DOUBLE_EQ(json->Find("balancedness_to")->real, 70.0 / 3 / 30);
  EXPECT_EQ(*wire::GetInteger(*json, "transfers"), 2);
}

TEST_F(DiffTest, ALoadWithoutTokensHasNoBalancedness) {
  const std::string path = Path("load.json");
  ASSERT_TRUE(WriteFileAtomically(path, "[[0,0,0,0],[0,0,0,0]]\n").ok());
  DiffOptions options{.query = daemon_.Options(Format::kJson), .from = "v1", .to = "v3"};
  options.load = path;
  EXPECT_THAT(RunDiff(options, kPlain).out,
              HasSubstr(R"("balancedness_from":null,"balancedness_to":null)"));
  options.query.format = Format::kTable;
  EXPECT_THAT(RunDiff(options, kPlain).out,
              HasSubstr("\nno balancedness: the load has no tokens\n"));
}

TEST_F(DiffTest, DiffChoosesTheLayersOfALoadAndPrintsItsNotes) {
  const std::string path = Path("load.json");
  ASSERT_TRUE(
      WriteFileAtomically(path, "{\"logical_count\":[[0,0,0,0],[10,40,10,10],[3,0,0,0]]}\n").ok());
  DiffOptions options{.query = daemon_.Options(), .from = "v1", .to = "v3", .load = path};
  EXPECT_EQ(RunDiff(options, kPlain).exit_code, kUsage);  // three layers for two
  options.reading.layers.first = 1;
  const Output output = RunDiff(options, kPlain);
  EXPECT_EQ(output.exit_code, kConditionNotMet) << output.message;
  EXPECT_EQ(output.message, "");
  options.reading.layers = {.first = {}, .list = {0, 1}};
  EXPECT_EQ(RunDiff(options, kPlain).exit_code, kConditionNotMet);
  ASSERT_TRUE(WriteFileAtomically(path, "[[10,40,10,10],[1,0,0,1]]\n").ok());
  options.reading.layers = {};
  EXPECT_EQ(RunDiff(options, kPlain).message, "");
  ASSERT_TRUE(WriteFileAtomically(path, "[[1,0,1,1],[1,0,0,1]]\n").ok());
  EXPECT_THAT(RunDiff(options, kPlain).message, HasSubstr("holds nothing but 0 and 1"));
}

// 64 GPUs with one expert each hand them all on in each of two layers.
TEST_F(DiffTest, ATableListsSomeTransfersAndJsonAll) {
  daemon_.placements.at(1) = ShiftedPlacement(0);
  daemon_.placements.at(3) = ShiftedPlacement(1);
  DiffOptions options{.query = daemon_.Options(), .from = "v1", .to = "now"};
  const Output table = RunDiff(options, kPlain);
  EXPECT_EQ(table.exit_code, kConditionNotMet) << table.message;
  EXPECT_THAT(table.out, EndsWith("\nand 88 more (-o json lists all)\n"));
  EXPECT_EQ(CountOf("(GPU", table.out), 40U);
  EXPECT_TRUE(FitsInto(table.out, 80)) << table.out;
  options.query.format = Format::kJson;
  EXPECT_EQ(CountOf("\"expert\":", RunDiff(options, kPlain).out), 128U);
}

TEST_F(DiffTest, DiffOfWhatIsNotThereNamesIt) {
  const Output file =
      RunDiff({.query = daemon_.Options(), .from = Path("none"), .to = "now"}, kPlain);
  EXPECT_EQ(file.exit_code, kUsage);
  EXPECT_THAT(file.message, HasSubstr("No such file"));
  const Output version = RunDiff({.query = daemon_.Options(), .from = "v2", .to = "now"}, kPlain);
  EXPECT_EQ(version.exit_code, kNotFound);
}

}  // namespace
}  // namespace eplb::cli
