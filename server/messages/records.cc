// Field by field, in both directions: what is written here is read back from the store.
#include "server/messages/records.h"

#include <optional>

#include "absl/time/time.h"

#include "proto/wire/message_texts.h"
#include "proto/wire/messages.h"

namespace eplb {
namespace {

// The enums of the core have the values of the messages in their order, and no unspecified one.
template <class Proto, class Value>
Proto EnumToProto(Value value) {
  return static_cast<Proto>(static_cast<int>(value) + 1);
}

// Returns none for an unspecified value, and for a value of a newer daemon.
template <class Value, class Proto>
std::optional<Value> FromProto(Proto value) {
  const int number = static_cast<int>(value);
  if (number == 0 || !google::protobuf::GetEnumDescriptor<Proto>()->FindValueByNumber(number)) {
    return std::nullopt;
  }
  return static_cast<Value>(number - 1);
}

static_assert(static_cast<int>(core::JobState::kLost) + 1 == v1::JobState_MAX);
static_assert(static_cast<int>(core::RunEnding::kLost) + 1 == v1::RunEnding_MAX);
static_assert(static_cast<int>(core::PlanResult::kFailed) + 1 == v1::PlanResult_MAX);

void ToProto(const core::ChunkTimes& chunk, v1::ChunkTimes* out) {
  out->set_version(static_cast<uint64_t>(chunk.version));
  out->set_num_layers(static_cast<uint32_t>(chunk.num_layers));
  out->set_proposed_unix_micros(absl::ToUnixMicros(chunk.proposed_at));
  out->set_prepared_unix_micros(absl::ToUnixMicros(chunk.prepared_at));
  out->set_ended_unix_micros(absl::ToUnixMicros(chunk.ended_at));
  out->set_committed(chunk.committed);
  out->set_timed_ranks(static_cast<uint32_t>(chunk.timed_ranks));
  for (const core::RankTimes& rank : chunk.ranks) {
    v1::ChunkRankTimes& times = *out->add_ranks();
    times.set_rank(static_cast<uint32_t>(rank.rank));
    times.set_prepared_unix_micros(absl::ToUnixMicros(rank.prepared_at));
    times.set_applied_unix_micros(absl::ToUnixMicros(rank.applied_at));
    if (rank.pause_seconds != core::kNotMeasured) times.set_pause_seconds(rank.pause_seconds);
  }
  if (chunk.longest_pause_rank < 0) return;
  out->set_longest_pause_rank(static_cast<uint32_t>(chunk.longest_pause_rank));
  out->set_longest_pause_seconds(chunk.longest_pause_seconds);
}

void ToProto(const core::PlanTimes& times, v1::PlanTimes* out) {
  out->set_window_began_unix_micros(absl::ToUnixMicros(times.window_began_at));
  out->set_window_complete_unix_micros(absl::ToUnixMicros(times.window_complete_at));
  out->set_solve_began_unix_micros(absl::ToUnixMicros(times.solve_began_at));
  for (const core::ChunkTimes& chunk : times.chunks) ToProto(chunk, out->add_chunks());
}

core::ChunkTimes TimesFrom(const v1::ChunkTimes& in) {
  core::ChunkTimes chunk{.version = static_cast<int64_t>(in.version()),
                         .num_layers = static_cast<int32_t>(in.num_layers()),
                         .proposed_at = absl::FromUnixMicros(in.proposed_unix_micros()),
                         .prepared_at = absl::FromUnixMicros(in.prepared_unix_micros()),
                         .ended_at = absl::FromUnixMicros(in.ended_unix_micros()),
                         .committed = in.committed(),
                         .timed_ranks = static_cast<int32_t>(in.timed_ranks())};
  for (const v1::ChunkRankTimes& rank : in.ranks()) {
    chunk.ranks.push_back(
        {.rank = static_cast<int32_t>(rank.rank()),
         .prepared_at = absl::FromUnixMicros(rank.prepared_unix_micros()),
         .applied_at = absl::FromUnixMicros(rank.applied_unix_micros()),
         .pause_seconds = rank.has_pause_seconds() ? rank.pause_seconds() : core::kNotMeasured});
  }
  if (in.has_longest_pause_rank() && in.has_longest_pause_seconds()) {
    chunk.longest_pause_rank = static_cast<int32_t>(in.longest_pause_rank());
    chunk.longest_pause_seconds = in.longest_pause_seconds();
  }
  return chunk;
}

core::PlanTimes TimesFrom(const v1::PlanTimes& in) {
  core::PlanTimes times{
      .window_began_at = absl::FromUnixMicros(in.window_began_unix_micros()),
      .window_complete_at = absl::FromUnixMicros(in.window_complete_unix_micros()),
      .solve_began_at = absl::FromUnixMicros(in.solve_began_unix_micros())};
  for (const v1::ChunkTimes& chunk : in.chunks()) times.chunks.push_back(TimesFrom(chunk));
  return times;
}

}  // namespace

v1::JobState ToProto(core::JobState state) { return EnumToProto<v1::JobState>(state); }

v1::RunEnding ToProto(core::RunEnding how) { return EnumToProto<v1::RunEnding>(how); }

v1::PlanResult ToProto(core::PlanResult result) { return EnumToProto<v1::PlanResult>(result); }

void ToProto(const core::TriedCandidate& candidate, v1::TriedCandidate* out) {
  out->set_name(candidate.name);
  out->set_in_use(candidate.in_use);
  out->set_windows(static_cast<uint64_t>(candidate.windows));
  if (candidate.balancedness > 0) out->set_balancedness(candidate.balancedness);
  if (candidate.net_seconds) out->set_net_seconds(*candidate.net_seconds);
  if (candidate.realized) out->set_realized(*candidate.realized);
}

void ToProto(const core::Plan& plan, v1::Plan* out) {
  out->set_plan(static_cast<uint64_t>(plan.plan));
  out->set_unix_micros(absl::ToUnixMicros(plan.decided_at));
  out->set_policy(plan.policy);
  out->set_result(ToProto(plan.result));
  out->set_base_version(static_cast<uint64_t>(plan.base_version));
  out->set_first_version(static_cast<uint64_t>(plan.first_version));
  out->set_last_version(static_cast<uint64_t>(plan.last_version));
  out->set_decided_first_step(static_cast<uint64_t>(plan.decided_first_step));
  out->set_decided_last_step(static_cast<uint64_t>(plan.decided_last_step));
  if (plan.balancedness_before > 0) out->set_balancedness_before(plan.balancedness_before);
  if (plan.balancedness_in_force > 0) {
    out->set_balancedness_in_force(plan.balancedness_in_force);
  }
  if (plan.balancedness_predicted) out->set_balancedness_predicted(*plan.balancedness_predicted);
  out->set_split(wire::SplitName(plan.split));
  if (plan.peak_fall) out->set_peak_fall(*plan.peak_fall);
  if (plan.net_gain_seconds) out->set_net_gain_seconds(*plan.net_gain_seconds);
  if (plan.migration_seconds) out->set_migration_seconds(*plan.migration_seconds);
  out->set_transfers(static_cast<uint64_t>(plan.transfers));
  if (plan.received_bytes != core::kNotMeasured) {
    out->set_received_bytes(static_cast<uint64_t>(plan.received_bytes));
  }
  out->set_num_chunks(static_cast<uint32_t>(plan.num_chunks));
  out->set_chunks_committed(static_cast<uint32_t>(plan.chunks_committed));
  if (plan.solve_seconds) out->set_solve_seconds(*plan.solve_seconds);
  if (plan.prepare_seconds) out->set_prepare_seconds(*plan.prepare_seconds);
  if (plan.chunks_committed > 0 && plan.pause_seconds != core::kNotMeasured) {
    out->set_pause_seconds(plan.pause_seconds);
  }
  out->set_switched_step(static_cast<uint64_t>(plan.switched_step));
  out->set_reason(plan.reason);
  out->set_asked_by(plan.asked_by);
  if (plan.balancedness_seen) out->set_balancedness_seen(*plan.balancedness_seen);
  out->set_seen_first_step(static_cast<uint64_t>(plan.seen_first_step));
  out->set_seen_last_step(static_cast<uint64_t>(plan.seen_last_step));
  if (plan.prediction_error) out->set_prediction_error(*plan.prediction_error);
  if (plan.prediction_evidence) {
    out->set_prediction_evidence(static_cast<uint64_t>(*plan.prediction_evidence));
  }
  for (const core::TriedCandidate& one : plan.candidates) ToProto(one, out->add_candidates());
  ToProto(plan.times, out->mutable_times());
  wire::ClipTexts(out);
}

absl::StatusOr<core::Plan> FromProto(const v1::Plan& in) {
  const std::optional<core::PlanResult> result = FromProto<core::PlanResult>(in.result());
  if (!result) return absl::DataLossError("a plan has an unknown result");
  core::Plan plan;
  plan.plan = static_cast<int64_t>(in.plan());
  plan.decided_at = absl::FromUnixMicros(in.unix_micros());
  plan.policy = in.policy();
  plan.result = *result;
  plan.base_version = static_cast<int64_t>(in.base_version());
  plan.first_version = static_cast<int64_t>(in.first_version());
  plan.last_version = static_cast<int64_t>(in.last_version());
  plan.decided_first_step = static_cast<int64_t>(in.decided_first_step());
  plan.decided_last_step = static_cast<int64_t>(in.decided_last_step());
  plan.balancedness_before = in.balancedness_before();
  plan.balancedness_in_force = in.balancedness_in_force();
  if (in.has_balancedness_predicted()) plan.balancedness_predicted = in.balancedness_predicted();
  if (in.split() == wire::SplitName(SplitMode::kBatch)) plan.split = SplitMode::kBatch;
  if (in.has_peak_fall()) plan.peak_fall = in.peak_fall();
  if (in.has_net_gain_seconds()) plan.net_gain_seconds = in.net_gain_seconds();
  if (in.has_migration_seconds()) plan.migration_seconds = in.migration_seconds();
  plan.transfers = static_cast<int64_t>(in.transfers());
  plan.received_bytes =
      in.has_received_bytes() ? static_cast<int64_t>(in.received_bytes()) : core::kNotMeasured;
  plan.num_chunks = static_cast<int32_t>(in.num_chunks());
  plan.chunks_committed = static_cast<int32_t>(in.chunks_committed());
  if (in.has_solve_seconds()) plan.solve_seconds = in.solve_seconds();
  if (in.has_prepare_seconds()) plan.prepare_seconds = in.prepare_seconds();
  if (in.has_pause_seconds()) {
    plan.pause_seconds = in.pause_seconds();
  } else if (plan.chunks_committed > 0) {
    plan.pause_seconds = core::kNotMeasured;
  }
  plan.switched_step = static_cast<int64_t>(in.switched_step());
  plan.reason = in.reason();
  plan.asked_by = in.asked_by();
  if (in.has_balancedness_seen()) plan.balancedness_seen = in.balancedness_seen();
  plan.seen_first_step = static_cast<int64_t>(in.seen_first_step());
  plan.seen_last_step = static_cast<int64_t>(in.seen_last_step());
  if (in.has_prediction_error()) plan.prediction_error = in.prediction_error();
  if (in.has_prediction_evidence()) {
    plan.prediction_evidence = static_cast<int64_t>(in.prediction_evidence());
  }
  for (const v1::TriedCandidate& one : in.candidates()) {
    plan.candidates.push_back({.name = one.name(),
                               .in_use = one.in_use(),
                               .windows = static_cast<int64_t>(one.windows()),
                               .balancedness = one.balancedness()});
    if (one.has_net_seconds()) plan.candidates.back().net_seconds = one.net_seconds();
    if (one.has_realized()) plan.candidates.back().realized = one.realized();
  }
  plan.times = TimesFrom(in.times());
  return plan;
}

void ToProto(const core::RunEnd& end, v1::RunEnd* out) {
  out->set_ending(ToProto(end.how));
  out->set_reason(end.reason);
  out->set_unix_micros(absl::ToUnixMicros(end.at));
  out->set_run_id(end.run_id);
  out->set_world_size(static_cast<uint32_t>(end.world_size));
  out->set_step(static_cast<uint64_t>(end.step));
  out->set_elsewhere(end.elsewhere);
  wire::ClipTexts(out);
}

absl::StatusOr<core::RunEnd> FromProto(const v1::RunEnd& in) {
  const std::optional<core::RunEnding> how = FromProto<core::RunEnding>(in.ending());
  if (!how) return absl::DataLossError("a run has an unknown ending");
  return core::RunEnd{.how = *how,
                      .reason = in.reason(),
                      .at = absl::FromUnixMicros(in.unix_micros()),
                      .run_id = in.run_id(),
                      .world_size = static_cast<int32_t>(in.world_size()),
                      .step = static_cast<int64_t>(in.step()),
                      .elsewhere = in.elsewhere()};
}

void ToProto(const core::StoredEvent& stored, v1::JobEvent* out) {
  out->set_sequence(static_cast<uint64_t>(stored.sequence));
  out->set_unix_micros(absl::ToUnixMicros(stored.time));
  out->set_job(stored.event.job);
  out->set_name(stored.event.name);
  out->set_version(static_cast<uint64_t>(stored.event.version));
  out->set_reason(stored.event.reason);
  out->set_actor(stored.event.actor);
  out->set_before(stored.event.before);
  out->set_after(stored.event.after);
  wire::ClipTexts(out);
}

core::StoredEvent FromProto(const v1::JobEvent& in) {
  return {.sequence = static_cast<int64_t>(in.sequence()),
          .time = absl::FromUnixMicros(in.unix_micros()),
          .event = {.job = in.job(),
                    .name = in.name(),
                    .version = static_cast<int64_t>(in.version()),
                    .reason = in.reason(),
                    .actor = in.actor(),
                    .before = in.before(),
                    .after = in.after()}};
}

void ToProto(const core::WindowFigures& figures, v1::Window* out) {
  out->set_window(static_cast<uint64_t>(figures.window));
  out->set_completed_unix_micros(absl::ToUnixMicros(figures.completed_at));
  out->set_run_id(figures.run_id);
  out->set_first_step(static_cast<uint64_t>(figures.first_step));
  out->set_last_step(static_cast<uint64_t>(figures.last_step));
  out->mutable_versions()->Assign(figures.versions.begin(), figures.versions.end());
  out->set_coverage(figures.coverage);
  if (figures.step_seconds) out->set_step_seconds(*figures.step_seconds);
  out->set_tokens(static_cast<uint64_t>(figures.tokens));
  out->set_split(wire::SplitName(figures.split));
  if (figures.balancedness) out->set_balancedness(*figures.balancedness);
  if (figures.balancedness_equal) out->set_balancedness_equal(*figures.balancedness_equal);
  if (figures.balancedness_static) out->set_balancedness_static(*figures.balancedness_static);
  if (figures.balancedness_without_eplb) {
    out->set_balancedness_without_eplb(*figures.balancedness_without_eplb);
  }
  out->set_has_loads(figures.has_loads);
}

core::WindowFigures FromProto(const v1::Window& in) {
  core::WindowFigures figures{.window = static_cast<int64_t>(in.window()),
                              .completed_at = absl::FromUnixMicros(in.completed_unix_micros()),
                              .run_id = in.run_id(),
                              .first_step = static_cast<int64_t>(in.first_step()),
                              .last_step = static_cast<int64_t>(in.last_step()),
                              .versions = {in.versions().begin(), in.versions().end()},
                              .coverage = in.coverage(),
                              .tokens = static_cast<int64_t>(in.tokens()),
                              .has_loads = in.has_loads()};
  if (in.has_step_seconds()) figures.step_seconds = in.step_seconds();
  if (in.split() == wire::SplitName(SplitMode::kBatch)) figures.split = SplitMode::kBatch;
  if (in.has_balancedness()) figures.balancedness = in.balancedness();
  if (in.has_balancedness_equal()) figures.balancedness_equal = in.balancedness_equal();
  if (in.has_balancedness_static()) figures.balancedness_static = in.balancedness_static();
  if (in.has_balancedness_without_eplb()) {
    figures.balancedness_without_eplb = in.balancedness_without_eplb();
  }
  return figures;
}

}  // namespace eplb
