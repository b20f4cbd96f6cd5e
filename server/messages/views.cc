#include "server/messages/views.h"

#include <bit>
#include <cstring>
#include <string>

#include "proto/wire/convert.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/settings.h"
#include "server/messages/records.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little);  // as counts_u64 is

// The values of the core's enums are those of the messages in their order, without UNSPECIFIED.
v1::RankState ToProto(core::RankState state) {
  static_assert(static_cast<int>(core::RankState::kLost) + 1 == v1::RankState_MAX);
  return static_cast<v1::RankState>(static_cast<int>(state) + 1);
}

v1::RankAnswer ToProto(core::Answer answer) {
  static_assert(static_cast<int>(core::Answer::kFailed) + 1 == v1::RankAnswer_MAX);
  return static_cast<v1::RankAnswer>(static_cast<int>(answer) + 1);
}

void ToProto(const core::RankView& view, v1::RankStatus* out) {
  out->set_rank(static_cast<uint32_t>(view.rank));
  out->set_connected(view.connected);
  out->set_running_version(static_cast<uint64_t>(view.running_version));
  out->set_prepared_version(static_cast<uint64_t>(view.prepared_version));
  out->set_step(static_cast<uint64_t>(view.step));
  out->set_away_seconds(absl::ToDoubleSeconds(view.away));
  if (view.answer) out->set_answer(ToProto(*view.answer));
  if (view.answer_seconds) out->set_answer_seconds(*view.answer_seconds);
  if (view.pause_seconds) out->set_pause_seconds(*view.pause_seconds);
  out->set_dropped_steps(static_cast<uint64_t>(view.dropped_steps));
  out->set_library_version(view.library_version);
  out->set_state(ToProto(view.state));
  wire::ToProto(view.transport, out->mutable_transport());
  out->set_gpu(static_cast<uint32_t>(view.gpu));
  if (view.step_seconds) out->set_step_seconds(*view.step_seconds);
}

void MeasuredToProto(const core::JobView& view, v1::JobStatus* out) {
  if (view.balancedness) out->set_balancedness(*view.balancedness);
  if (view.balancedness) out->set_measured_split(wire::SplitName(view.measured_split));
  if (view.balancedness_static) out->set_balancedness_static(*view.balancedness_static);
  if (view.balancedness_without_eplb) {
    out->set_balancedness_without_eplb(*view.balancedness_without_eplb);
  }
  out->set_not_measured_reason(view.not_measured_reason);
  out->set_worse_reason(view.worse_reason);
  if (view.balancedness_predicted) out->set_balancedness_predicted(*view.balancedness_predicted);
  if (view.balancedness_seen) out->set_balancedness_seen(*view.balancedness_seen);
  if (view.saved_seconds) out->set_saved_seconds(*view.saved_seconds);
  if (view.spent_seconds) out->set_spent_seconds(*view.spent_seconds);
  if (view.prediction_error) out->set_prediction_error(*view.prediction_error);
  if (view.prediction_evidence) {
    out->set_prediction_evidence(static_cast<uint64_t>(*view.prediction_evidence));
  }
  for (const core::TriedCandidate& one : view.candidates) {
    eplb::ToProto(one, out->add_candidates());
  }
  out->set_measured_first_step(static_cast<uint64_t>(view.measured_first_step));
  out->set_measured_last_step(static_cast<uint64_t>(view.measured_last_step));
  for (const std::optional<double>& one : view.layer_balancedness) {
    out->add_layer_balancedness(one.value_or(0));
  }
}

// Progress of balancing, and the run that it is for.
void ProgressToProto(const core::JobView& view, v1::JobStatus* out) {
  out->set_stalled(view.stalled);
  out->set_stalled_reason(view.stalled_reason);
  out->set_not_counting_reason(view.not_counting_reason);
  if (view.step_seconds) out->set_step_seconds(*view.step_seconds);
  if (view.coverage_now) out->set_coverage_now(*view.coverage_now);
  out->set_run_number(static_cast<uint64_t>(view.run_number));
  out->set_term(static_cast<uint64_t>(view.term));
  out->set_refusal(view.refusal);
  out->set_refused_hellos(static_cast<uint64_t>(view.refused_hellos));
  out->set_take_over_refused(view.take_over_refused);
  if (!view.candidate) return;
  v1::CandidateStatus* const candidate = out->mutable_candidate();
  candidate->set_run_id(view.candidate->run_id);
  candidate->set_world_size(static_cast<uint32_t>(view.candidate->world_size));
  candidate->set_registered_ranks(static_cast<uint32_t>(view.candidate->registered));
  candidate->set_connected_ranks(static_cast<uint32_t>(view.candidate->connected));
  candidate->set_seconds(absl::ToDoubleSeconds(view.candidate->since));
  candidate->set_waits(view.candidate->waits);
  candidate->set_deadline_seconds(absl::ToDoubleSeconds(view.candidate->deadline));
}

void SpeedsToProto(const core::JobView& view, v1::JobStatus* out) {
  for (const core::GpuSpeedView& one : view.gpu_speeds) {
    v1::GpuSpeed* const speed = out->add_gpu_speeds();
    speed->set_gpu(static_cast<uint32_t>(one.gpu));
    if (one.measured_speed) speed->set_measured(*one.measured_speed);
    speed->set_in_use(one.speed_in_use);
    speed->set_source(one.source);
    speed->set_reason(one.reason);
  }
}

}  // namespace

void ToProto(const core::JobView& view, v1::JobStatus* out) {
  out->set_job(view.job);
  out->set_run_id(view.run_id);
  out->set_state(ToProto(view.state));
  out->set_state_seconds(absl::ToDoubleSeconds(view.state_age));
  out->set_waiting_for(view.waiting_for);
  wire::ToProto(view.shape, out->mutable_shape());
  out->set_world_size(static_cast<uint32_t>(view.world_size));
  out->set_connected_ranks(static_cast<uint32_t>(view.connected_ranks));
  out->set_step(static_cast<uint64_t>(view.step));
  out->set_version(static_cast<uint64_t>(view.version));
  out->set_digest(view.digest.bytes.data(), view.digest.bytes.size());
  MeasuredToProto(view, out);
  out->set_last_window_first_step(static_cast<uint64_t>(view.last_window_first_step));
  out->set_last_window_last_step(static_cast<uint64_t>(view.last_window_last_step));
  out->set_commits(static_cast<uint64_t>(view.commits));
  out->set_last_reason(view.last_reason);
  out->set_paused(view.paused);
  out->set_pause_reason(view.pause_reason);
  out->set_paused_by_lost_store(view.paused_by_lost_store);
  wire::ToProto(wire::PatchOf(view.settings), out->mutable_policy());
  out->set_report_every(static_cast<uint32_t>(view.report_every));
  out->set_reduce(view.reduce);
  out->set_split(view.split);
  if (view.coverage) out->set_coverage(*view.coverage);
  for (const int32_t layer : view.model_layers) {
    out->add_model_layers(static_cast<uint32_t>(layer));
  }
  if (view.ending) out->set_ending(ToProto(*view.ending));
  out->set_end_reason(view.end_reason);
  out->set_led_elsewhere(view.led_elsewhere);
  out->set_took_over(view.took_over);
  out->set_stuck_seconds(view.stuck_seconds);
  ProgressToProto(view, out);
  SpeedsToProto(view, out);
  for (const core::RankView& rank : view.ranks) ToProto(rank, out->add_ranks());
  wire::ClipTexts(out);
}

void ToProto(const core::RefusedJob& refused, absl::Time now, v1::Refusal* out) {
  out->set_job(refused.job);
  out->set_reason(refused.reason);
  out->set_count(static_cast<uint64_t>(refused.count));
  out->set_seconds_ago(absl::ToDoubleSeconds(now - refused.at));
  wire::ClipTexts(out);
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
