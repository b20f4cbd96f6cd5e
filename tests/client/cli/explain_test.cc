#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

#include "base/json_value.h"
#include "client/cli/commands.h"
#include "tests/client/cli/explained_job.h"

namespace eplb::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ExplainTest : public ExplainedJobTest {
 protected:
  ExplainOptions Options(Format format = Format::kTable) const {
    return {.query = daemon_.Options(format)};
  }
};

TEST_F(ExplainTest, AJobTellsItsPlacementsReasonTheNewestDecisionAndItsWorstLayers) {
  const std::string output = TextOf(RunExplain(Options(), kPlain));
  EXPECT_THAT(output, Says("waits for ranks 3, 5 to be ready", "plan 7, ", "policy balanced",
                           "switched at 431", "measured 0.700", "the predicted peak falls by 27 %",
                           "plan 8 kept: it would not pay", "model layer",
                           "worst first, measured on steps 400..449"));
  EXPECT_TRUE(FitsInto(output, 80)) << output;
}

TEST_F(ExplainTest, BalancednessIsWhatTheDaemonMeasuredBesideStaticPredictedAndSeen) {
  EXPECT_THAT(RunExplain(Options(), Terminal{.width = 200}).out,
              HasSubstr("measured 0.7500 on steps 12200..12249 | without EPLB 0.6250 | static "
                        "0.6125 | predicted 0.988 +- 0.030, seen 0.812 outside the error"));
  const std::string json = RunExplain(Options(Format::kJson), kPlain).out;
  EXPECT_THAT(json, HasSubstr(R"("balancedness":0.75,"balancedness_without_eplb":0.625,)"
                              R"("balancedness_static":0.6125)"));
  EXPECT_THAT(
      json,
      HasSubstr(
          R"("balancedness_predicted":0.9875,"prediction_error":0.03,"balancedness_seen":0.8125)"));
  daemon_.status.mutable_jobs(0)->clear_balancedness();
  daemon_.status.mutable_jobs(0)->clear_balancedness_seen();
  EXPECT_THAT(RunExplain(Options(Format::kJson), kPlain).out,
              HasSubstr(R"("balancedness":null,"balancedness_without_eplb":null,)"
                        R"("balancedness_static":null,"window":null)"));
}

// Adds `count` candidates that move, each worth a second less than the one before; the last is in
// use.
void AddCandidates(int count, v1::JobStatus& job) {
  for (int i = 0; i < count; ++i) {
    v1::TriedCandidate& one = *job.add_candidates();
    one.set_name(absl::StrCat("incremental/last/", i + 1));
    one.set_windows(24);
    one.set_balancedness(0.9 - 0.01 * i);
    one.set_net_seconds(7.0 - i);
    one.set_realized(0.5);
    one.set_in_use(i == count - 1);
  }
  v1::TriedCandidate& idle = *job.add_candidates();
  idle.set_name("none");
  idle.set_windows(24);
  idle.set_balancedness(0.625);
  idle.set_net_seconds(0);
}

TEST_F(ExplainTest, CandidatesOfAPolicyThatChoosesStandBestFirstWithDoingNothing) {
  AddCandidates(3, *daemon_.status.mutable_jobs(0));
  for (const int width : {80, 160}) {
    const std::string text = RunExplain(Options(), Terminal{.width = width}).out;
    EXPECT_TRUE(FitsInto(text, width)) << text;
    EXPECT_THAT(text, HasSubstr("Candidates of policy auto, back-tested on 24 windows\n"
                                "   candidate             net  balancedness  realized\n"
                                "   incremental/last/1  7.0 s         0.900    50.0 %\n"
                                "   incremental/last/2  6.0 s         0.890    50.0 %\n"
                                "*  incremental/last/3  5.0 s         0.880    50.0 %\n"
                                "   do nothing            0 s         0.625         -\n"
                                "  * in use; net: seconds saved"));
    EXPECT_THAT(text, Not(HasSubstr("the best 8")));
  }
}

TEST_F(ExplainTest, WhatABackTestHasNotSeenOfACandidateIsABlankWithItsCause) {
  AddCandidates(2, *daemon_.status.mutable_jobs(0));
  for (int i = 0; i < 2; ++i) {
    daemon_.status.mutable_jobs(0)->mutable_candidates(i)->clear_realized();
    daemon_.status.mutable_jobs(0)->mutable_candidates(i)->clear_net_seconds();
  }
  const std::string text = RunExplain(Options(), Terminal{.width = 160}).out;
  EXPECT_THAT(text, Says("*  incremental/last/2    -         0.890\n",
                         "what later windows showed; -: not known yet\n"));
}

TEST_F(ExplainTest, OfManyCandidatesTheBestAreShownAndTheOneInUse) {
  AddCandidates(12, *daemon_.status.mutable_jobs(0));
  const std::string text = RunExplain(Options(), Terminal{.width = 160}).out;
  EXPECT_THAT(text, HasSubstr("incremental/last/8 "));
  for (const char* hidden : {"last/9 ", "last/10 ", "last/11 "}) {
    EXPECT_THAT(text, Not(HasSubstr(hidden)));
  }
  EXPECT_LT(text.find("do nothing"), text.find("*  incremental/last/12"))
      << "it has lost four seconds, and is in use all the same";
  EXPECT_THAT(text, HasSubstr("best 8 of 12 (-o"));
  const std::string json = RunExplain(Options(Format::kJson), kPlain).out;
  EXPECT_EQ(CountOf(R"("net_seconds")", json), 13U);
}

TEST_F(ExplainTest, WithoutABackTestThereIsNoTableOfCandidates) {
  EXPECT_THAT(RunExplain(Options(), kPlain).out, Not(HasSubstr("Candidates")));
  EXPECT_THAT(RunExplain(Options(Format::kJson), kPlain).out, HasSubstr(R"("candidates":[])"));
}

TEST_F(ExplainTest, ADecisionForSeveralLoadsHasARowForEach) {
  EXPECT_THAT(RunExplain(Options(), kPlain).out, Not(HasSubstr("balancedness under")))
      << "as every plan of an older daemon";
  ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(
      "scenarios { load: 'steps 350..399' weight: 3 balancedness { mean: 0.97125 min: 0.9312 } "
      "balancedness_in_force { mean: 0.8123 min: 0.7 } } "
      "scenarios { load: 'a name that is much too long\x1b[31m' weight: 0.333333 "
      "balancedness { mean: 0.9698 min: 0.9301 } balancedness_in_force { mean: 0.7411 } } "
      "objective { name: 'mean' mean: 1.031 mean_in_force: 1.2512 mixtures_at_least: 0.965 "
      "mixtures_at_least_in_force: 0.735 }",
      &daemon_.plans.back()));
  for (const int width : {80, 160}) {
    const std::string text = RunExplain(Options(), Terminal{.width = width}).out;
    EXPECT_TRUE(FitsInto(text, static_cast<size_t>(width))) << text;
    EXPECT_THAT(text, HasSubstr("\n\n"
                                "balancedness under        weight  before  proposed  worst layer\n"
                                "steps 350..399                 3  0.8123    0.9712       0.9312\n"
                                "a name that is much to..   0.333  0.7411    0.9698       0.9301\n"
                                "any mixture, at least             0.7350    0.9650\n"));
  }
  EXPECT_THAT(RunExplain(Options(), Terminal{.width = 200}).out,
              HasSubstr("Objective mean: max / mean GPU load, weighted mean over the loads, is "
                        "1.0310 on average over layers (before 1.2512). A load that resembles "));
  EXPECT_THAT(RunExplain(Options(Format::kJson), kPlain).out,
              Says(R"("scenarios":[{"load":"steps 350..399","weight":3.0,)"
                   R"("balancedness":{"mean":0.97125,"min":0.9312},)"
                   R"("balancedness_in_force":{"mean":0.8123,"min":0.7}})",
                   R"("objective":{"name":"mean","mean":1.031,"mean_in_force":1.2512,)"
                   R"("mixtures_at_least":0.965,"mixtures_at_least_in_force":0.735})",
                   R"("scenarios":[],"objective":null)"));
  daemon_.plans.front().Swap(&daemon_.plans.back());  // a newest decision that kept the placement
  EXPECT_EQ(CountOf("any mixture, at least", RunExplain(Options(), kPlain).out), 1U);
}

TEST_F(ExplainTest, AReasonStandsOnce) {
  daemon_.plans.erase(daemon_.plans.begin());  // the current one is the newest
  daemon_.status.mutable_jobs(0)->set_last_reason("the predicted peak falls by 27 %");
  const std::string text = RunExplain(Options(), Terminal{.width = 160}).out;
  EXPECT_EQ(CountOf("the predicted peak falls by 27 %", text), 1U) << text;
  EXPECT_THAT(text, HasSubstr("Current placement, by the newest decision"));
}

TEST_F(ExplainTest, SettingsInForceAreThoseThatSetPolicyTakes) {
  EXPECT_THAT(RunExplain(Options(), Terminal{.width = 160}).out,
              HasSubstr("name=incremental mode=apply every_steps=200 min_gain=0.05 "
                        "horizon_steps=1000 freeze_steps=0:60 max_pause=200ms layers_per_chunk=4"));
  EXPECT_THAT(RunExplain(Options(Format::kJson), kPlain).out,
              HasSubstr(R"("settings":{"name":"incremental","mode":"apply")"));
}

// GPUs got 25, 25 and 50 tokens in layer 0: what ran, and not the current placement, which would
// have given them 30, 30 and 40.
TEST_F(ExplainTest, FiguresOfLayersAreWhatTheGpusGot) {
  const absl::StatusOr<wire::JsonValue> json =
      wire::ParseJson(RunExplain(Options(Format::kJson), kPlain).out);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*wire::GetString(*json, "layers_are"), "measured");
  const wire::JsonValue& layers = *json->Find("layers");
  ASSERT_EQ(layers.objects.size(), 2U);
  for (const wire::JsonValue& layer : layers.objects) {
    if (*wire::GetInteger(layer, "layer") != 0) continue;
    EXPECT_NEAR(layer.Find("balancedness")->real, (100.0 / 3) / 50, 1e-12);
    EXPECT_EQ(*wire::GetInteger(layer, "hottest_gpu"), 2);
    EXPECT_EQ(*wire::GetInteger(layer, "model_layer"), 3);
    EXPECT_DOUBLE_EQ(layer.Find("hottest_expert_share")->real, 0.4);
    EXPECT_EQ(*wire::GetInteger(layer, "hottest_expert_replicas"), 2);
  }
}

TEST_F(ExplainTest, ALayerWithoutTokensHasNoFiguresAndIsLast) {
  std::string counts = daemon_.load->counts_u64();
  std::fill(counts.begin(), counts.begin() + std::ssize(counts) / 2, '\0');
  daemon_.load->set_counts_u64(counts);
  for (int gpu = 0; gpu < 3; ++gpu) daemon_.load->set_gpu_loads(gpu, 0);
  EXPECT_THAT(RunExplain(Options(Format::kJson), kPlain).out,
              HasSubstr(R"({"layer":0,"model_layer":3,"balancedness":null,"hottest_gpu":null,)"
                        R"("hottest_gpu_load":null,"hottest_expert":null,)"
                        R"("hottest_expert_share":null,"hottest_expert_replicas":null}])"));
  EXPECT_THAT(RunExplain(Options(), kPlain).out, ContainsRegex("0 +3 +- +- +- +- +- +-\n"));
}

// Layer 0 after the move: 0 2 | 1 3 | 0 1 with 40 40 10 10 tokens: GPUs would have 30, 30 and 40.
TEST_F(ExplainTest, LayersWithoutMeasuredGpuLoadsAreCalledComputed) {
  daemon_.load->clear_gpu_loads();
  daemon_.load->clear_versions();
  const std::string json = RunExplain(Options(Format::kJson), kPlain).out;
  EXPECT_THAT(json, HasSubstr(R"("layers_are":"computed")"));
  EXPECT_NEAR(wire::ParseJson(json)->Find("layers")->objects.at(1).Find("balancedness")->real,
              (100.0 / 3) / 40, 1e-12);
  EXPECT_THAT(RunExplain(Options(), kPlain).out,
              HasSubstr("worst first, computed on steps 400..449"));
  ExplainOptions options = Options();
  options.layer = 0;
  EXPECT_THAT(RunExplain(options, kPlain).out, HasSubstr("computed 0.8333 | before 0.8333"));
  EXPECT_THAT(RunExplain(options, kPlain).out, Not(HasSubstr("measured")));
}

// Gpu loads of another run's GPUs are not those of this placement.
TEST_F(ExplainTest, LoadsOfAnotherNumberOfGpusAreLeftOut) {
  daemon_.load->clear_gpu_loads();
  for (const double tokens : {50, 50, 40, 40}) daemon_.load->add_gpu_loads(tokens);
  EXPECT_THAT(RunExplain(Options(Format::kJson), kPlain).out,
              HasSubstr(R"("layers_are":"computed")"));
}

TEST_F(ExplainTest, ALayerTellsItsGpusAndWhatMoved) {
  ExplainOptions options = Options();
  options.layer = 0;
  const std::string output = TextOf(RunExplain(options, kPlain));
  EXPECT_THAT(output, Says("Layer 0 (model layer 3)\n",
                           "steps 400..449: computed 0.8333 | measured 0.6667 | static",
                           "plan 7 moved expert 1 (GPU 0 -> 1), 2 (GPU 1 -> 0)"));
  EXPECT_TRUE(FitsInto(output, 80)) << output;
  options.layer = 1;
  EXPECT_THAT(RunExplain(options, kPlain).out, HasSubstr("plan 7 moved no expert of this layer"));
}

TEST_F(ExplainTest, AWindowThatRanUnderThePlacementInForceIsComparedWithTheOneBefore) {
  daemon_.load->clear_versions();
  daemon_.load->add_versions(3);
  ExplainOptions options = Options();
  options.layer = 0;
  const std::string text = RunExplain(options, Terminal{.width = 160}).out;
  EXPECT_THAT(text, HasSubstr("measured 0.6667 | before 0.8333 | static 0.8333"));
  EXPECT_THAT(text, Not(HasSubstr("computed")));
}

// GPU loads are tokens / speed, also of the placement before: GPU 0 takes twice as long.
TEST_F(ExplainTest, ThePlacementBeforeIsComparedAtTheSameGpuSpeeds) {
  daemon_.status.mutable_jobs(0)->add_gpu_speeds()->set_in_use(0.5);
  daemon_.load->clear_gpu_loads();
  ExplainOptions options = Options();
  options.layer = 0;
  EXPECT_THAT(RunExplain(options, kPlain).out, HasSubstr("computed 0.7222 | before 0.5833"));
  options.query.format = Format::kJson;
  EXPECT_THAT(RunExplain(options, kPlain).out, HasSubstr(R"("gpu_loads_before":[80.0,20.0,40.0])"));
}

TEST_F(ExplainTest, AnExpertTellsItsReplicasNowAndBefore) {
  ExplainOptions options = Options();
  options.layer = 0;
  options.expert = 1;
  const Output output = RunExplain(options, kPlain);
  EXPECT_THAT(output.out, Says("Expert 1 of layer 0 (model layer 3)", "1.60 times an even",
                               "on GPU 1 (slot 2, primary), 2 (slot 5)",
                               "before plan 7: on GPU 0 (slot 1, primary), 2 (slot 5)"));
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
  EXPECT_THAT(TextOf(RunExplain(options, kPlain)), HasSubstr("| measured 0.6667 | static"));
}

TEST_F(ExplainTest, ALoadThatIsNoneIsAnError) {
  daemon_.load->set_num_experts(3);
  const Output output = RunExplain(Options(), kPlain);
  EXPECT_EQ(output.exit_code, kError);
  EXPECT_THAT(output.message, HasSubstr("the daemon's answer is no load"));
}

}  // namespace
}  // namespace eplb::cli
