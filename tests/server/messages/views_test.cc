#include "server/messages/views.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/wire/message_json.h"

namespace eplb {
namespace {

core::JobView ExampleView() {
  core::JobView view;
  view.job = "train";
  view.run_id = "a";
  view.state = core::JobState::kVoting;
  view.state_age = absl::Milliseconds(1500);
  view.shape = {.num_layers = 2,
                .num_experts = 8,
                .num_slots = 10,
                .num_gpus = 2,
                .num_nodes = 1,
                .num_groups = 1};
  view.world_size = 2;
  view.version = 7;
  view.ranks.resize(1);
  return view;
}

TEST(ViewsTest, AJobKeepsItsNamesNumbersAndState) {
  v1::JobStatus status;
  ToProto(ExampleView(), &status);
  EXPECT_EQ(status.job(), "train");
  EXPECT_EQ(status.run_id(), "a");
  EXPECT_EQ(status.state(), v1::JOB_STATE_VOTING);
  EXPECT_EQ(status.state_seconds(), 1.5);
  EXPECT_EQ(status.shape().num_slots(), 10);
  EXPECT_EQ(status.world_size(), 2);
  EXPECT_EQ(status.version(), 7);
  EXPECT_EQ(status.digest().size(), Digest().bytes.size());
}

// The receiver of a message refuses all of it if one text is not UTF-8.
TEST(ViewsTest, TextsOfOneJobHideNoOtherJob) {
  core::JobView broken = ExampleView();
  broken.last_reason = "K\xf6ln";
  broken.stalled_reason = "\xff\xfe";
  broken.ranks[0].library_version = "0.1.0-\xe2\x82";
  broken.ranks[0].transport.settings = {{"NCCL_\x80", "\u009b31m"}};
  v1::GetStatusResponse sent;
  ToProto(broken, sent.add_jobs());
  ToProto(ExampleView(), sent.add_jobs());
  ToProto(core::RefusedJob{.job = "other", .reason = "\xc3("}, absl::UnixEpoch(),
          sent.add_refusals());
  v1::GetStatusResponse received;
  ASSERT_TRUE(received.ParseFromString(sent.SerializeAsString()));
  EXPECT_EQ(received.jobs(0).last_reason(), "K?ln");
  EXPECT_EQ(received.jobs(0).stalled_reason(), "??");
  EXPECT_EQ(received.jobs(0).ranks(0).library_version(), "0.1.0-??");
  EXPECT_EQ(received.jobs(0).ranks(0).transport().settings(0).name(), "NCCL_?");
  EXPECT_EQ(received.jobs(0).ranks(0).transport().settings(0).value(), "?31m");
  EXPECT_EQ(received.jobs(1).job(), "train");
  EXPECT_EQ(received.refusals(0).reason(), "?(");
}

TEST(ViewsTest, AFigureWithoutASampleIsNotSetAndHasItsCause) {
  core::JobView view = ExampleView();
  view.layer_balancedness = {0.5, std::nullopt};
  view.not_measured_reason = "no load window is complete yet";
  v1::JobStatus status;
  ToProto(view, &status);
  EXPECT_EQ(status.ending(), v1::RUN_ENDING_UNSPECIFIED);
  EXPECT_EQ(status.ranks(0).answer(), v1::RANK_ANSWER_UNSPECIFIED);
  EXPECT_FALSE(status.has_candidate());
  const std::string json = wire::ToJsonText(status);
  for (const char* key :
       {"balancedness", "balancedness_static", "balancedness_predicted", "balancedness_seen",
        "balancedness_without_eplb", "saved_seconds", "spent_seconds", "coverage", "coverage_now",
        "step_seconds", "answer_seconds", "pause_seconds"}) {
    EXPECT_NE(json.find(absl::StrCat("\"", key, "\":null")), std::string::npos) << key;
  }
  EXPECT_FALSE(status.ranks(0).has_step_seconds());
  EXPECT_EQ(status.not_measured_reason(), "no load window is complete yet");
  EXPECT_EQ(status.layer_balancedness(0), 0.5);
  EXPECT_EQ(status.layer_balancedness(1), 0);
}

TEST(ViewsTest, TheAccountIsShown) {
  core::JobView view = ExampleView();
  view.saved_seconds = -2.5;
  view.balancedness_without_eplb = 0.75;
  view.worse_reason = "worse";
  view.spent_seconds = 0.25;
  v1::JobStatus status;
  ToProto(view, &status);
  EXPECT_EQ(status.saved_seconds(), -2.5);
  EXPECT_EQ(status.balancedness_without_eplb(), 0.75);
  EXPECT_EQ(status.worse_reason(), "worse");
  EXPECT_EQ(status.spent_seconds(), 0.25);
}

TEST(ViewsTest, AnEndedRunAPredictionAndACandidateAreShown) {
  core::JobView view = ExampleView();
  view.ending = core::RunEnding::kLost;
  view.led_elsewhere = true;
  view.paused_by_lost_store = true;
  view.balancedness_predicted = 0.9;
  view.balancedness_seen = 0.0;
  view.candidate = core::RunView{.run_id = "b",
                                 .world_size = 4,
                                 .registered = 3,
                                 .connected = 2,
                                 .since = absl::Seconds(5),
                                 .waits = "for rank 3",
                                 .deadline = absl::Seconds(60)};
  v1::JobStatus status;
  ToProto(view, &status);
  EXPECT_EQ(status.ending(), v1::RUN_ENDING_LOST);
  EXPECT_TRUE(status.led_elsewhere());
  EXPECT_TRUE(status.paused_by_lost_store());
  EXPECT_EQ(status.balancedness_predicted(), 0.9);
  EXPECT_TRUE(status.has_balancedness_seen());
  EXPECT_EQ(status.candidate().run_id(), "b");
  EXPECT_EQ(status.candidate().registered_ranks(), 3);
  EXPECT_EQ(status.candidate().connected_ranks(), 2);
  EXPECT_EQ(status.candidate().seconds(), 5);
  EXPECT_EQ(status.candidate().waits(), "for rank 3");
  EXPECT_EQ(status.candidate().deadline_seconds(), 60);
}

// The states and answers of a rank in the order of the core's values.
TEST(ViewsTest, StateAndAnswerOfARankHaveTheirNames) {
  const char* const states[] = {"expected", "connected", "away", "finished", "failed", "lost"};
  const char* const answers[] = {"none", "prepared", "applied", "failed"};
  core::JobView view = ExampleView();
  for (int state = 0; state < 6; ++state) {
    view.ranks[0].state = static_cast<core::RankState>(state);
    view.ranks[0].answer = static_cast<core::Answer>(state % 4);
    v1::JobStatus status;
    ToProto(view, &status);
    EXPECT_EQ(wire::EnumText(status.ranks(0).state()), states[state]);
    EXPECT_EQ(wire::EnumText(status.ranks(0).answer()), answers[state % 4]);
  }
}

TEST(ViewsTest, ARefusalHasItsAge) {
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  v1::Refusal refusal;
  ToProto({.job = "other", .reason = "no room", .count = 3, .at = now - absl::Seconds(90)}, now,
          &refusal);
  EXPECT_EQ(wire::ToJsonText(refusal),
            R"({"job":"other","reason":"no room","count":3,"seconds_ago":90.0})");
}

TEST(ViewsTest, AWindowHasItsCountsRowByRow) {
  LoadMatrix counts(2, 3);
  counts << 1, 2, 3, 4, 5, 6;
  core::WindowView window{.first_step = 10, .last_step = 19};
  window.load = std::make_shared<Load>(*Load::FromCounts(counts));
  v1::GetLoadResponse response;
  ToProto(window, &response);
  EXPECT_EQ(response.num_layers(), 2);
  EXPECT_EQ(response.num_experts(), 3);
  EXPECT_EQ(response.gpu_loads_size(), 0);  // a placement is not known
  std::vector<int64_t> read(6);
  ASSERT_EQ(response.counts_u64().size(), read.size() * sizeof(int64_t));
  std::memcpy(read.data(), response.counts_u64().data(), response.counts_u64().size());
  EXPECT_EQ(read, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));

  window.on_gpus = std::make_shared<core::GpuTokens>(
      core::GpuTokens{.loads = RealMatrix::Constant(2, 2, 10.5), .versions = {3, 4}});
  ToProto(window, &response);
  EXPECT_EQ(std::vector<double>(response.gpu_loads().begin(), response.gpu_loads().end()),
            std::vector<double>(4, 10.5));
  EXPECT_EQ(std::vector<uint64_t>(response.versions().begin(), response.versions().end()),
            (std::vector<uint64_t>{3, 4}));
}

}  // namespace
}  // namespace eplb
