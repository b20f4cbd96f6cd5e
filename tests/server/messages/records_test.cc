#include "server/messages/records.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "proto/wire/message_json.h"

namespace eplb {
namespace {

core::Plan FullPlan() {
  return {.plan = 7,
          .decided_at = absl::FromUnixMicros(1'763'719'323'123'456),
          .policy = "incremental",
          .result = core::PlanResult::kPartial,
          .base_version = 3,
          .first_version = 4,
          .last_version = 5,
          .decided_first_step = 100,
          .decided_last_step = 149,
          .balancedness_before = 0.5,
          .balancedness_in_force = 0.51,
          .balancedness_predicted = 0.9,
          .prediction_error = 0.03,
          .prediction_evidence = 5,
          .split = SplitMode::kBatch,
          .balancedness_seen = 0.88,
          .seen_first_step = 200,
          .seen_last_step = 249,
          .peak_fall = 0.25,
          .net_gain_seconds = 12.5,
          .migration_seconds = 0.75,
          .transfers = 96,
          .received_bytes = 1 << 20,
          .num_chunks = 3,
          .chunks_committed = 2,
          .solve_seconds = 0.125,
          .prepare_seconds = 1.5,
          .pause_seconds = 0.0625,
          .switched_step = 160,
          .reason = "it pays",
          .asked_by = "uid 1000 (alice)",
          .candidates = {{.name = "incremental/last/1",
                          .in_use = true,
                          .windows = 12,
                          .balancedness = 0.75,
                          .net_seconds = 1.5,
                          .realized = 0.5}},
          .times = {.window_began_at = absl::FromUnixMicros(11),
                    .window_complete_at = absl::FromUnixMicros(12),
                    .solve_began_at = absl::FromUnixMicros(13),
                    .chunks = {{.version = 4,
                                .num_layers = 2,
                                .proposed_at = absl::FromUnixMicros(14),
                                .prepared_at = absl::FromUnixMicros(16),
                                .ended_at = absl::FromUnixMicros(18),
                                .committed = true,
                                .timed_ranks = 40,
                                .ranks = {{.rank = 3,
                                           .prepared_at = absl::FromUnixMicros(15),
                                           .applied_at = absl::FromUnixMicros(17),
                                           .pause_seconds = 0.5},
                                          {.rank = 9, .prepared_at = absl::FromUnixMicros(16)}},
                                .longest_pause_rank = 3,
                                .longest_pause_seconds = 0.5},
                               {.version = 5, .proposed_at = absl::FromUnixMicros(19)}}}};
}

TEST(RecordsTest, APlanIsReadAsItWasWritten) {
  core::Plan plan = FullPlan();
  v1::Plan message;
  ToProto(plan, &message);
  EXPECT_EQ(*FromProto(message), plan);

  plan.received_bytes = core::kNotMeasured;
  plan.pause_seconds = core::kNotMeasured;
  plan.balancedness_seen.reset();
  message.Clear();
  ToProto(plan, &message);
  EXPECT_FALSE(message.has_received_bytes());
  EXPECT_FALSE(message.has_pause_seconds());
  EXPECT_EQ(*FromProto(message), plan);
  const v1::ChunkTimes& unfinished = message.times().chunks(1);
  EXPECT_FALSE(unfinished.has_longest_pause_rank());
  EXPECT_EQ(unfinished.ended_unix_micros(), 0) << "not known";
  EXPECT_FALSE(message.times().chunks(0).ranks(1).has_pause_seconds());
}

TEST(RecordsTest, AFigureOfAPlanThatHasNoSampleIsNotSet) {
  const core::Plan plan{.plan = 1, .candidates = {{.name = "none"}}};
  v1::Plan message;
  ToProto(plan, &message);
  EXPECT_EQ(*FromProto(message), plan);
  const std::string json = wire::ToJsonText(message);
  for (const char* key : {"balancedness_predicted", "prediction_error", "prediction_evidence",
                          "peak_fall", "net_gain_seconds", "migration_seconds", "solve_seconds",
                          "prepare_seconds", "pause_seconds", "net_seconds", "realized"}) {
    EXPECT_NE(json.find(absl::StrCat("\"", key, "\":null")), std::string::npos) << key;
  }
}

TEST(RecordsTest, AnEndAndAnEventAreReadAsTheyWereWritten) {
  const core::RunEnd end = {.how = core::RunEnding::kLost,
                            .reason = "rank 3 was away",
                            .at = absl::FromUnixMicros(5),
                            .run_id = "a/1",
                            .world_size = 8,
                            .step = 17,
                            .elsewhere = true};
  v1::RunEnd end_message;
  ToProto(end, &end_message);
  EXPECT_EQ(*FromProto(end_message), end);

  const core::StoredEvent event = {.sequence = 9,
                                   .time = absl::FromUnixMicros(6),
                                   .event = {.job = "train",
                                             .name = "pause",
                                             .version = 4,
                                             .reason = "why",
                                             .actor = "alice",
                                             .before = "a",
                                             .after = "b"}};
  v1::JobEvent event_message;
  ToProto(event, &event_message);
  const core::StoredEvent read = *FromProto(event_message);
  const auto fields = [](const core::StoredEvent& one) {
    return std::tie(one.sequence, one.time, one.event.job, one.event.name, one.event.version,
                    one.event.reason, one.event.actor, one.event.before, one.event.after);
  };
  EXPECT_EQ(fields(read), fields(event));
}

TEST(RecordsTest, ARecordWithAnUnknownValueIsRefused) {
  for (const int value : {-1, 0, 100}) {
    v1::Plan plan;
    plan.set_result(static_cast<v1::PlanResult>(value));
    EXPECT_EQ(FromProto(plan).status().code(), absl::StatusCode::kDataLoss) << value;
    v1::RunEnd end;
    end.set_ending(static_cast<v1::RunEnding>(value));
    EXPECT_EQ(FromProto(end).status().code(), absl::StatusCode::kDataLoss) << value;
  }
}

TEST(RecordsTest, AStateAndAResultHaveTheSameNameInTheLogAndInJson) {
  for (int i = 0; i < v1::JobState_MAX; ++i) {
    const auto state = static_cast<core::JobState>(i);
    EXPECT_EQ(wire::EnumText(ToProto(state)), core::JobStateName(state));
  }
  for (int i = 0; i < v1::PlanResult_MAX; ++i) {
    const auto result = static_cast<core::PlanResult>(i);
    EXPECT_EQ(wire::EnumText(ToProto(result)), core::PlanResultName(result));
  }
  EXPECT_EQ(wire::EnumText(ToProto(core::RunEnding::kFinished)), "finished");
  EXPECT_EQ(wire::EnumText(ToProto(core::RunEnding::kFailed)), "failed");
  EXPECT_EQ(wire::EnumText(ToProto(core::RunEnding::kLost)), "lost");
}

TEST(RecordsTest, AWindowHasItsCountsRowByRow) {
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
