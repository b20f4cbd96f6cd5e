#include "client/cli/daemon/explain.h"

#include <gmock/gmock.h>

#include "proto/wire/json_value.h"
#include "tests/client/cli/daemon/explained_job.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;

class ExplainTest : public ExplainedJobTest {
 protected:
  ExplainOptions Options(Format format = Format::kTable) const {
    return {.query = daemon_.Options(format), .job = ""};
  }
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

TEST_F(ExplainTest, ATableListsSomeTransfersOfALayerAndJsonAll) {
  daemon_.placements.at(1) = ShiftedPlacement(0);
  daemon_.placements.at(3) = ShiftedPlacement(1);
  daemon_.load->set_num_experts(64);
  daemon_.load->set_counts_u64(std::string(size_t{2} * 64 * 8, '\1'));
  ExplainOptions options = Options();
  options.layer = 1;
  const Output table = RunExplain(options, kPlain);
  EXPECT_EQ(table.exit_code, kOk) << table.message;
  EXPECT_THAT(table.out, HasSubstr("and 24 more"));
  EXPECT_EQ(CountOf("(GPU", table.out), 40U);
  EXPECT_TRUE(FitsInto(table.out, 80)) << table.out;
  options.query.format = Format::kJson;
  EXPECT_EQ(CountOf("\"expert\":", RunExplain(options, kPlain).out), 64U);
  daemon_.placements.erase(1);
  EXPECT_THAT(RunExplain(options, kPlain).out, HasSubstr(R"("moved":null)"));
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

TEST_F(ExplainTest, BetweenTheChunksOfAPlanThePlanIsTheReason) {
  daemon_.plans.back().set_num_chunks(2);
  daemon_.plans.back().set_last_version(4);  // committed since the version was asked for
  EXPECT_THAT(RunExplain(Options(), kPlain).out, HasSubstr("the predicted peak falls by 27 %"));
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

}  // namespace
}  // namespace eplb::cli
