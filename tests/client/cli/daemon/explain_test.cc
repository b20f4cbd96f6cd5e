// explain, top and diff.
#include "client/cli/daemon/explain.h"

#include <gmock/gmock.h>

#include "client/cli/daemon/diff.h"
#include "client/cli/daemon/top.h"
#include "client/files/atomic_write.h"
#include "proto/wire/json_value.h"
#include "proto/wire/placement_json.h"
#include "tests/client/cli/daemon/scripted_query.h"
#include "tests/client/files/test_files.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ExplainTest : public FilesTest {
 protected:
  ExplainTest() {
    v1::JobStatus& job = *daemon_.status.add_jobs();
    job = ExampleJob();
    job.add_model_layers(3);
    job.add_model_layers(6);
    v1::Plan plan;
    plan.set_plan(7);
    plan.set_policy("balanced");
    plan.set_result("committed");
    plan.set_base_version(1);
    plan.set_num_chunks(1);
    plan.set_chunks_committed(1);
    plan.set_last_version(3);
    plan.set_switched_step(431);
    plan.set_reason("the predicted peak falls by 27 %");
    v1::Plan kept;
    kept.set_plan(8);
    kept.set_result("kept");
    kept.set_reason("it would not pay");
    daemon_.plans = {kept, plan};
    v1::GetLoadResponse load;
    load.set_first_step(400);
    load.set_last_step(449);
    load.set_num_layers(2);
    load.set_num_experts(4);
    std::string cells;
    for (const char tokens : std::string("\x28\x28\x0a\x0a\x14\x14\x14\x14")) {
      cells += tokens + std::string(7, '\0');
    }
    load.set_counts_u64(cells);
    daemon_.load = load;
  }
  ExplainOptions Options(Format format = Format::kTable) const {
    return {.query = daemon_.Options(format), .job = ""};
  }
  ScriptedQuery daemon_;
};

TEST_F(ExplainTest, AJobTellsItsPlacementsReasonTheNewestDecisionAndItsWorstLayers) {
  const Output output = RunExplain(Options(), kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word :
       {"waits for ranks 3, 5 to be ready", "on steps 400..449", "plan 7, policy balanced",
        "switched at step 431", "the predicted peak falls by 27 %", "plan 8 kept: it would not pay",
        "model layer"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
}

// Layer 0 after the move: 0 2 | 1 3 | 0 1 with 40 40 10 10 tokens: GPUs have 30, 30 and 40.
TEST_F(ExplainTest, FiguresAreThoseOfTheNewestWindow) {
  const absl::StatusOr<wire::JsonValue> json =
      wire::ParseJson(RunExplain(Options(Format::kJson), kPlain).out);
  ASSERT_TRUE(json.ok()) << json.status();
  const wire::JsonValue& layers = *json->Find("layers");
  ASSERT_EQ(layers.objects.size(), 2U);
  for (const wire::JsonValue& layer : layers.objects) {
    if (*wire::GetInteger(layer, "layer") != 0) continue;
    EXPECT_NEAR(layer.Find("balancedness")->real, (100.0 / 3) / 40, 1e-12);
    EXPECT_EQ(*wire::GetInteger(layer, "hottest_gpu"), 2);
    EXPECT_EQ(*wire::GetInteger(layer, "model_layer"), 3);
    EXPECT_DOUBLE_EQ(layer.Find("hottest_expert_share")->real, 0.4);
    EXPECT_EQ(*wire::GetInteger(layer, "hottest_expert_replicas"), 2);
  }
}

TEST_F(ExplainTest, ALayerTellsItsGpusAndWhatMoved) {
  ExplainOptions options = Options();
  options.layer = 0;
  const Output output = RunExplain(options, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_THAT(output.out, HasSubstr("layer 0 (model layer 3): balancedness 0.8333"));
  EXPECT_THAT(output.out, HasSubstr("newest switch it was 0.8333"));
  EXPECT_THAT(output.out, HasSubstr("plan 7 moved expert 1 (GPU 0 -> 1), 2 (GPU 1 -> 0)"));
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  options.layer = 1;
  EXPECT_THAT(RunExplain(options, kPlain).out, HasSubstr("plan 7 moved no expert of this layer"));
}

TEST_F(ExplainTest, AnExpertTellsItsReplicasNowAndBefore) {
  ExplainOptions options = Options();
  options.layer = 0;
  options.expert = 1;
  const Output output = RunExplain(options, kPlain);
  EXPECT_THAT(output.out, HasSubstr("Expert 1 of layer 0 (model layer 3)"));
  EXPECT_THAT(output.out, HasSubstr("1.60 times an even"));
  EXPECT_THAT(output.out, HasSubstr("on GPU 1 (slot 2, primary), 2 (slot 5)"));
  EXPECT_THAT(output.out, HasSubstr("before plan 7: on GPU 0 (slot 1, primary), 2 (slot 5)"));
  options.query.format = Format::kJson;
  EXPECT_THAT(RunExplain(options, kPlain).out, HasSubstr(R"("gpus":[1,2],"gpus_before":[0,2])"));
}

TEST_F(ExplainTest, WhatIsNotThereIsSaid) {
  ExplainOptions options = Options();
  options.layer = 2;
  EXPECT_EQ(RunExplain(options, kPlain).exit_code, kUsage);
  options.layer = -1;
  options.expert = 0;
  EXPECT_EQ(RunExplain(options, kPlain).message, "--expert needs --layer");
  daemon_.load.reset();
  daemon_.plans.clear();
  EXPECT_THAT(RunExplain(Options(), kPlain).out, HasSubstr("no plan that this daemon remembers"));
  options = Options();
  options.layer = 0;
  EXPECT_EQ(RunExplain(options, kPlain).exit_code, kNotFound);
}

TEST_F(ExplainTest, APlanThatLedToAnotherVersionIsNotTheReason) {
  daemon_.plans.back().set_last_version(2);
  EXPECT_THAT(RunExplain(Options(), kPlain).out, HasSubstr("no plan that this daemon remembers"));
}

TEST_F(ExplainTest, APlacementOfAnotherShapeIsNotCompared) {
  daemon_.placements.at(1) = Placement::Static(
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 8, .num_gpus = 4}));
  ExplainOptions options = Options();
  options.layer = 0;
  const Output output = RunExplain(options, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_THAT(output.out, HasSubstr("with the static"));
}

TEST_F(ExplainTest, ALoadThatIsNoneIsAnError) {
  daemon_.load->set_num_experts(3);
  const Output output = RunExplain(Options(), kPlain);
  EXPECT_EQ(output.exit_code, kError);
  EXPECT_THAT(output.message, HasSubstr("the daemon's answer is no load"));
}

TEST_F(ExplainTest, TopShowsOneScreen) {
  const Output output = RunTop({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_THAT(output.out, HasSubstr("GPU loads, all layers"));
  EXPECT_THAT(output.out, HasSubstr("static layout"));
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
}

TEST_F(ExplainTest, DiffTellsTransfersAndEndsWith8) {
  const Output output = RunDiff(
      {.query = daemon_.Options(), .job = "", .from = "v1", .to = "now", .load = ""}, kPlain);
  EXPECT_EQ(output.exit_code, kConditionNotMet) << output.message;
  EXPECT_THAT(output.out, HasSubstr("version 1 -> version 3"));
  EXPECT_THAT(output.out, HasSubstr("1 layer differ"));
  EXPECT_THAT(output.out, HasSubstr("layer 0"));
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
}

TEST_F(ExplainTest, DiffOfEqualPlacementsEndsWith0AlsoBetweenFileAndDaemon) {
  const std::string path = Path("p.json");
  ASSERT_TRUE(WriteFileAtomically(path, wire::PlacementToJson(ExampleAfter()) + "\n").ok());
  const Output output = RunDiff(
      {.query = daemon_.Options(), .job = "", .from = path, .to = "v3", .load = ""}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_THAT(output.out, HasSubstr("are equal"));
}

TEST_F(ExplainTest, DiffUnderALoadTellsBalancedness) {
  const std::string path = Path("load.json");
  ASSERT_TRUE(WriteFileAtomically(path, "[[10,40,10,10],[0,0,0,0]]\n").ok());
  const Output output = RunDiff(
      {.query = daemon_.Options(Format::kJson), .job = "", .from = "v1", .to = "v3", .load = path},
      kPlain);
  const absl::StatusOr<wire::JsonValue> json = wire::ParseJson(output.out);
  ASSERT_TRUE(json.ok()) << output.message;
  // GPUs 25 20 25, then 15 30 25.
  EXPECT_DOUBLE_EQ(json->Find("balancedness_from")->real, 70.0 / 3 / 25);
  EXPECT_DOUBLE_EQ(json->Find("balancedness_to")->real, 70.0 / 3 / 30);
  EXPECT_EQ(*wire::GetInteger(*json, "transfers"), 2);
}

TEST_F(ExplainTest, DiffOfWhatIsNotThereNamesIt) {
  const Output file = RunDiff(
      {.query = daemon_.Options(), .job = "", .from = Path("none"), .to = "now", .load = ""},
      kPlain);
  EXPECT_EQ(file.exit_code, kUsage);
  EXPECT_THAT(file.message, HasSubstr("No such file"));
  const Output version = RunDiff(
      {.query = daemon_.Options(), .job = "", .from = "v2", .to = "now", .load = ""}, kPlain);
  EXPECT_EQ(version.exit_code, kNotFound);
}

}  // namespace
}  // namespace eplb::cli
