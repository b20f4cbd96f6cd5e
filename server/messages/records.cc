// Records of a job, each by one list of its fields: what is written here is read back from the
// store.
#include "server/messages/records.h"

#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/fields.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/messages.h"

namespace eplb::wire {

template <>
inline constexpr auto kFields<core::RankTimes> = std::tuple{
    Field{"rank", &core::RankTimes::rank},
    Field{"prepared_unix_micros", &core::RankTimes::prepared_at},
    Field{"applied_unix_micros", &core::RankTimes::applied_at},
    SparseField{"pause_seconds", &core::RankTimes::pause_seconds, double{core::kNotMeasured}}};

template <>
inline constexpr auto kFields<core::ChunkTimes> =
    std::tuple{Field{"version", &core::ChunkTimes::version},
               Field{"num_layers", &core::ChunkTimes::num_layers},
               Field{"proposed_unix_micros", &core::ChunkTimes::proposed_at},
               Field{"prepared_unix_micros", &core::ChunkTimes::prepared_at},
               Field{"ended_unix_micros", &core::ChunkTimes::ended_at},
               Field{"committed", &core::ChunkTimes::committed},
               Field{"timed_ranks", &core::ChunkTimes::timed_ranks},
               Field{"ranks", &core::ChunkTimes::ranks},
               SparseField{"longest_pause_rank", &core::ChunkTimes::longest_pause_rank, -1},
               SparseField{"longest_pause_seconds", &core::ChunkTimes::longest_pause_seconds,
                           double{core::kNotMeasured}}};

template <>
inline constexpr auto kFields<core::PlanTimes> =
    std::tuple{Field{"window_began_unix_micros", &core::PlanTimes::window_began_at},
               Field{"window_complete_unix_micros", &core::PlanTimes::window_complete_at},
               Field{"solve_began_unix_micros", &core::PlanTimes::solve_began_at},
               Field{"chunks", &core::PlanTimes::chunks}};

template <>
inline constexpr auto kFields<core::TriedCandidate> =
    std::tuple{Field{"name", &core::TriedCandidate::name, kMaxLongText},
               Field{"in_use", &core::TriedCandidate::in_use},
               Field{"windows", &core::TriedCandidate::windows},
               SparseField{"balancedness", &core::TriedCandidate::balancedness, 0.0},
               Field{"net_seconds", &core::TriedCandidate::net_seconds},
               Field{"realized", &core::TriedCandidate::realized}};

// Without the result, the split and the pause, whose values need words or another field.
template <>
inline constexpr auto kFields<core::Plan> = std::tuple{
    Field{"plan", &core::Plan::plan},
    Field{"unix_micros", &core::Plan::decided_at},
    Field{"policy", &core::Plan::policy, kMaxLongText},
    Field{"base_version", &core::Plan::base_version},
    Field{"first_version", &core::Plan::first_version},
    Field{"last_version", &core::Plan::last_version},
    Field{"decided_first_step", &core::Plan::decided_first_step},
    Field{"decided_last_step", &core::Plan::decided_last_step},
    SparseField{"balancedness_before", &core::Plan::balancedness_before, 0.0},
    SparseField{"balancedness_in_force", &core::Plan::balancedness_in_force, 0.0},
    Field{"balancedness_predicted", &core::Plan::balancedness_predicted},
    Field{"peak_fall", &core::Plan::peak_fall},
    Field{"net_gain_seconds", &core::Plan::net_gain_seconds},
    Field{"migration_seconds", &core::Plan::migration_seconds},
    Field{"transfers", &core::Plan::transfers},
    SparseField{"received_bytes", &core::Plan::received_bytes, int64_t{core::kNotMeasured}},
    Field{"num_chunks", &core::Plan::num_chunks},
    Field{"chunks_committed", &core::Plan::chunks_committed},
    Field{"solve_seconds", &core::Plan::solve_seconds},
    Field{"prepare_seconds", &core::Plan::prepare_seconds},
    Field{"switched_step", &core::Plan::switched_step},
    Field{"reason", &core::Plan::reason, kMaxLongText},
    Field{"asked_by", &core::Plan::asked_by, kMaxLongText},
    Field{"balancedness_seen", &core::Plan::balancedness_seen},
    Field{"seen_first_step", &core::Plan::seen_first_step},
    Field{"seen_last_step", &core::Plan::seen_last_step},
    Field{"prediction_error", &core::Plan::prediction_error},
    Field{"prediction_evidence", &core::Plan::prediction_evidence},
    Field{"candidates", &core::Plan::candidates},
    Field{"times", &core::Plan::times}};

template <>
inline constexpr auto kFields<core::RunEnd> =
    std::tuple{Field{"reason", &core::RunEnd::reason, kMaxLongText},
               Field{"unix_micros", &core::RunEnd::at},
               Field{"run_id", &core::RunEnd::run_id, kMaxLongText},
               Field{"world_size", &core::RunEnd::world_size},
               Field{"step", &core::RunEnd::step},
               Field{"elsewhere", &core::RunEnd::elsewhere}};

template <>
inline constexpr auto kFields<core::StoredEvent> =
    std::tuple{Field{"sequence", &core::StoredEvent::sequence},
               Field{"unix_micros", &core::StoredEvent::time}};

template <>
inline constexpr auto kFields<core::JobEvent> =
    std::tuple{Field{"job", &core::JobEvent::job, kMaxLongText},
               Field{"name", &core::JobEvent::name, kMaxLongText},
               Field{"version", &core::JobEvent::version},
               Field{"reason", &core::JobEvent::reason, kMaxLongText},
               Field{"actor", &core::JobEvent::actor, kMaxLongText},
               Field{"before", &core::JobEvent::before, kMaxLongText},
               Field{"after", &core::JobEvent::after, kMaxLongText}};

template <>
inline constexpr auto kFields<core::WindowFigures> =
    std::tuple{Field{"window", &core::WindowFigures::window},
               Field{"completed_unix_micros", &core::WindowFigures::completed_at},
               Field{"run_id", &core::WindowFigures::run_id, kMaxLongText},
               Field{"first_step", &core::WindowFigures::first_step},
               Field{"last_step", &core::WindowFigures::last_step},
               Field{"versions", &core::WindowFigures::versions},
               Field{"coverage", &core::WindowFigures::coverage},
               Field{"step_seconds", &core::WindowFigures::step_seconds},
               Field{"tokens", &core::WindowFigures::tokens},
               Field{"balancedness", &core::WindowFigures::balancedness},
               Field{"balancedness_equal", &core::WindowFigures::balancedness_equal},
               Field{"balancedness_static", &core::WindowFigures::balancedness_static},
               Field{"balancedness_without_eplb", &core::WindowFigures::balancedness_without_eplb},
               Field{"has_loads", &core::WindowFigures::has_loads}};

}  // namespace eplb::wire

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

static_assert(std::endian::native == std::endian::little);  // the order of bytes in counts_u64
static_assert(static_cast<int>(core::JobState::kLost) + 1 == v1::JobState_MAX);
static_assert(static_cast<int>(core::RunEnding::kLost) + 1 == v1::RunEnding_MAX);
static_assert(static_cast<int>(core::PlanResult::kFailed) + 1 == v1::PlanResult_MAX);

SplitMode SplitFrom(const std::string& name) {
  return name == wire::SplitName(SplitMode::kBatch) ? SplitMode::kBatch : SplitMode::kEqual;
}

// errors: DataLoss, naming the field that is wrong.
template <class Struct>
absl::Status Read(const google::protobuf::Message& in, Struct* out) {
  const absl::Status read = wire::ReadFields(in, out);
  return read.ok() ? read : DataLoss("a record's ", read.message());
}

}  // namespace

v1::JobState ToProto(core::JobState state) { return EnumToProto<v1::JobState>(state); }

v1::RunEnding ToProto(core::RunEnding how) { return EnumToProto<v1::RunEnding>(how); }

v1::PlanResult ToProto(core::PlanResult result) { return EnumToProto<v1::PlanResult>(result); }

void ToProto(const core::TriedCandidate& candidate, v1::TriedCandidate* out) {
  wire::WriteFields(candidate, out);
}

void ToProto(const core::Plan& plan, v1::Plan* out) {
  wire::WriteFields(plan, out);
  out->set_result(ToProto(plan.result));
  out->set_split(wire::SplitName(plan.split));
  if (plan.chunks_committed > 0 && plan.pause_seconds != core::kNotMeasured) {
    out->set_pause_seconds(plan.pause_seconds);
  }
}

absl::StatusOr<core::Plan> FromProto(const v1::Plan& in) {
  const std::optional<core::PlanResult> result = FromProto<core::PlanResult>(in.result());
  if (!result) return DataLoss("a plan has an unknown result");
  core::Plan plan{.result = *result, .split = SplitFrom(in.split())};
  EPLB_RETURN_IF_ERROR(Read(in, &plan));
  if (in.has_pause_seconds()) {
    plan.pause_seconds = in.pause_seconds();
  } else if (plan.chunks_committed > 0) {
    plan.pause_seconds = core::kNotMeasured;
  }
  return plan;
}

void ToProto(const core::RunEnd& end, v1::RunEnd* out) {
  wire::WriteFields(end, out);
  out->set_ending(ToProto(end.how));
}

absl::StatusOr<core::RunEnd> FromProto(const v1::RunEnd& in) {
  const std::optional<core::RunEnding> how = FromProto<core::RunEnding>(in.ending());
  if (!how) return DataLoss("a run has an unknown ending");
  core::RunEnd end{.how = *how};
  EPLB_RETURN_IF_ERROR(Read(in, &end));
  return end;
}

void ToProto(const core::StoredEvent& stored, v1::JobEvent* out) {
  wire::WriteFields(stored, out);
  wire::WriteFields(stored.event, out);
}

absl::StatusOr<core::StoredEvent> FromProto(const v1::JobEvent& in) {
  core::StoredEvent stored;
  EPLB_RETURN_IF_ERROR(Read(in, &stored));
  EPLB_RETURN_IF_ERROR(Read(in, &stored.event));
  return stored;
}

void ToProto(const core::WindowFigures& figures, v1::Window* out) {
  wire::WriteFields(figures, out);
  out->set_split(wire::SplitName(figures.split));
}

absl::StatusOr<core::WindowFigures> FromProto(const v1::Window& in) {
  core::WindowFigures figures{.split = SplitFrom(in.split())};
  EPLB_RETURN_IF_ERROR(Read(in, &figures));
  return figures;
}

void ToProto(const core::WindowView& window, v1::GetLoadResponse* out) {
  const LoadMatrix& counts = window.load->counts();
  out->set_first_step(static_cast<uint64_t>(window.first_step));
  out->set_last_step(static_cast<uint64_t>(window.last_step));
  out->set_num_layers(static_cast<uint32_t>(counts.rows()));
  out->set_num_experts(static_cast<uint32_t>(counts.cols()));
  std::string* bytes = out->mutable_counts_u64();
  bytes->resize(static_cast<size_t>(counts.size()) * sizeof(int64_t));
  std::memcpy(bytes->data(), counts.data(), bytes->size());
  if (window.on_gpus == nullptr) return;
  const RealMatrix& gpu_loads = window.on_gpus->loads;
  out->mutable_gpu_loads()->Assign(gpu_loads.data(), gpu_loads.data() + gpu_loads.size());
  for (const int64_t version : window.on_gpus->versions) {
    out->add_versions(static_cast<uint64_t>(version));
  }
}

}  // namespace eplb
