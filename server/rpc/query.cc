#include "server/rpc/query.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"

namespace eplb {
namespace {

constexpr int32_t kDefaultLines = 100;
constexpr uint32_t kMaxLines = 1000;

static_assert(std::endian::native == std::endian::little);  // as counts_u64 is

void ToProto(const core::RankView& view, v1::RankStatus* out) {
  out->set_rank(static_cast<uint32_t>(view.rank));
  out->set_connected(view.connected);
  out->set_running_version(static_cast<uint64_t>(view.running_version));
  out->set_prepared_version(static_cast<uint64_t>(view.prepared_version));
  out->set_step(static_cast<uint64_t>(view.step));
  out->set_away_seconds(absl::ToDoubleSeconds(view.away));
  out->set_answer(view.answer);
  out->set_answer_seconds(view.answer_seconds);
  out->set_pause_seconds(view.pause_seconds);
  out->set_dropped_steps(static_cast<uint64_t>(view.dropped_steps));
  out->set_library_version(view.library_version);
  out->set_state(view.state);
  ToProto(view.transport, out->mutable_transport());
}

void ToProto(const core::Plan& plan, v1::Plan* out) {
  out->set_plan(static_cast<uint64_t>(plan.plan));
  out->set_unix_micros(absl::ToUnixMicros(plan.decided_at));
  out->set_policy(plan.policy);
  out->set_result(std::string(core::PlanResultName(plan.result)));
  out->set_base_version(static_cast<uint64_t>(plan.base_version));
  out->set_first_version(static_cast<uint64_t>(plan.first_version));
  out->set_last_version(static_cast<uint64_t>(plan.last_version));
  out->set_decided_first_step(static_cast<uint64_t>(plan.decided_first_step));
  out->set_decided_last_step(static_cast<uint64_t>(plan.decided_last_step));
  out->set_balancedness_before(plan.balancedness_before);
  out->set_balancedness_in_force(plan.balancedness_in_force);
  out->set_balancedness_predicted(plan.balancedness_predicted);
  out->set_peak_fall(plan.peak_fall);
  out->set_net_gain_seconds(plan.net_gain_seconds);
  out->set_migration_seconds(plan.migration_seconds);
  out->set_transfers(static_cast<uint64_t>(plan.transfers));
  if (plan.received_bytes != core::kNotMeasured) {
    out->set_received_bytes(static_cast<uint64_t>(plan.received_bytes));
  }
  out->set_num_chunks(static_cast<uint32_t>(plan.num_chunks));
  out->set_chunks_committed(static_cast<uint32_t>(plan.chunks_committed));
  out->set_solve_seconds(plan.solve_seconds);
  out->set_prepare_seconds(plan.prepare_seconds);
  if (plan.pause_seconds != core::kNotMeasured) out->set_pause_seconds(plan.pause_seconds);
  out->set_switched_step(static_cast<uint64_t>(plan.switched_step));
  out->set_reason(plan.reason);
  out->set_asked_by(plan.asked_by);
  if (!plan.balancedness_seen) return;
  out->set_balancedness_seen(*plan.balancedness_seen);
  out->set_seen_first_step(static_cast<uint64_t>(plan.seen_first_step));
  out->set_seen_last_step(static_cast<uint64_t>(plan.seen_last_step));
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

void MeasuredToProto(const core::JobView& view, v1::JobStatus* out) {
  out->set_balancedness(view.balancedness);
  out->set_balancedness_static(view.balancedness_static);
  if (view.balancedness_predicted) out->set_balancedness_predicted(*view.balancedness_predicted);
  if (view.balancedness_seen) out->set_balancedness_seen(*view.balancedness_seen);
  out->set_measured_first_step(static_cast<uint64_t>(view.measured_first_step));
  out->set_measured_last_step(static_cast<uint64_t>(view.measured_last_step));
  out->mutable_layer_balancedness()->Assign(view.layer_balancedness.begin(),
                                            view.layer_balancedness.end());
}

// Whether balancing goes on, and for which run.
void ProgressToProto(const core::JobView& view, v1::JobStatus* out) {
  out->set_stalled(view.stalled);
  out->set_stalled_reason(view.stalled_reason);
  out->set_step_seconds(view.step_seconds);
  out->set_coverage_now(view.coverage_now);
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
}

// No version is as high as the number that this gives for one that does not fit.
int64_t ClampedVersion(uint64_t version) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(version, kMost));
}

// The number of lines that a request asks for.
absl::StatusOr<int32_t> LimitOf(uint32_t limit) {
  if (limit > kMaxLines) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit is ", limit, ", expected 0..", kMaxLines));
  }
  return limit == 0 ? kDefaultLines : static_cast<int32_t>(limit);
}

void ToProto(const core::JobView& view, v1::JobStatus* out) {
  out->set_job(view.job);
  out->set_run_id(view.run_id);
  out->set_state(view.state);
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
  wire::ToProto(wire::PatchOf(view.settings), out->mutable_policy());
  out->set_report_every(static_cast<uint32_t>(view.report_every));
  out->set_reduce(view.reduce);
  out->set_coverage(view.coverage);
  for (const int32_t layer : view.model_layers) {
    out->add_model_layers(static_cast<uint32_t>(layer));
  }
  out->set_ending(view.ending);
  out->set_end_reason(view.end_reason);
  out->set_took_over(view.took_over);
  out->set_stuck_seconds(view.stuck_seconds);
  ProgressToProto(view, out);
  for (const core::RankView& rank : view.ranks) ToProto(rank, out->add_ranks());
}

void ToProto(const StoredEvent& stored, v1::JobEvent* out) {
  out->set_sequence(static_cast<uint64_t>(stored.sequence));
  out->set_unix_micros(absl::ToUnixMicros(stored.time));
  out->set_job(stored.event.job);
  out->set_name(stored.event.name);
  out->set_version(static_cast<uint64_t>(stored.event.version));
  out->set_reason(stored.event.reason);
  out->set_actor(stored.event.actor);
  out->set_before(stored.event.before);
  out->set_after(stored.event.after);
}

grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(wire::ToGrpc(status));
  return reactor;
}

class QueryService : public v1::Query::CallbackService {
 public:
  explicit QueryService(QueryOptions options) : options_(std::move(options)) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    const absl::Status admitted = options_.gate->Admit(*context, Verb::kQuery, "");
    if (!admitted.ok()) return Done(context, admitted);
    const PeerIdentity peer = options_.gate->IdentityOf(*context);
    const absl::Status ready = options_.runner->Readiness();
    response->set_server_version(options_.server_version);
    response->set_term(static_cast<uint64_t>(options_.runner->term()));
    response->set_uptime_seconds(absl::ToDoubleSeconds(MonotonicNow() - options_.started));
    response->set_ready(ready.ok());
    response->set_not_ready_reason(std::string(ready.message()));
    for (const std::string& warning : options_.runner->Warnings()) response->add_warnings(warning);
    AddRefusals(peer, *response);
    for (const core::JobView& view : options_.runner->Jobs()) {
      if (Allowed(peer, Verb::kQuery, view.job).ok()) {
        ToProto(view, response->add_jobs());
      } else {
        response->set_jobs_hidden(true);
      }
    }
    return Done(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::JobStatus* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    const absl::StatusOr<core::JobView> view = options_.runner->Job(request->job());
    if (view.ok()) ToProto(*view, response);
    return Done(context, view.status());
  }

  grpc::ServerUnaryReactor* GetPlacement(grpc::CallbackServerContext* context,
                                         const v1::GetPlacementRequest* request,
                                         v1::GetPlacementResponse* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    if (request->has_version()) {
      return Read(context, [this, request, response] {
        const absl::StatusOr<wire::PlacementBody> body =
            options_.runner->PlacementOf(request->job(), ClampedVersion(request->version()));
        if (body.ok()) wire::ToProto(body->placement, body->version, response->mutable_placement());
        return body.status();
      });
    }
    const absl::StatusOr<wire::PlacementBody> body =
        options_.runner->PlacementInForce(request->job());
    if (body.ok()) wire::ToProto(body->placement, body->version, response->mutable_placement());
    const absl::StatusOr<int64_t> next = options_.runner->NextVersion(request->job());
    if (body.ok() && next.ok()) response->set_next_version(static_cast<uint64_t>(*next));
    return Done(context, body.status());
  }

  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context,
                                       const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    const absl::StatusOr<int32_t> limit = LimitOf(request->limit());
    if (!limit.ok()) return Done(context, limit.status());
    return Read(context, [this, request, response, limit = *limit] {
      const absl::StatusOr<std::vector<StoredEvent>> events =
          options_.runner->Events(request->job(), limit, ClampedVersion(request->after_sequence()));
      if (events.ok()) {
        for (const StoredEvent& event : *events) ToProto(event, response->add_events());
      }
      return events.status();
    });
  }

  grpc::ServerUnaryReactor* ListPlans(grpc::CallbackServerContext* context,
                                      const v1::ListPlansRequest* request,
                                      v1::ListPlansResponse* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    const absl::StatusOr<int32_t> limit = LimitOf(request->limit());
    if (!limit.ok()) return Done(context, limit.status());
    const absl::StatusOr<std::vector<core::Plan>> plans =
        options_.runner->Plans(request->job(), *limit);
    if (plans.ok()) {
      for (const core::Plan& plan : *plans) ToProto(plan, response->add_plans());
    }
    return Done(context, plans.status());
  }

  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const v1::GetLoadRequest* request,
                                    v1::GetLoadResponse* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    const absl::StatusOr<core::WindowView> window = options_.runner->NewestWindow(request->job());
    if (window.ok()) ToProto(*window, response);
    return Done(context, window.status());
  }

 private:
  // Only of jobs that the asker may see.
  void AddRefusals(const PeerIdentity& peer, v1::GetStatusResponse& response) const {
    for (const core::RefusedJob& refused : options_.runner->Refusals()) {
      if (!Allowed(peer, Verb::kQuery, refused.job).ok()) continue;
      v1::Refusal& refusal = *response.add_refusals();
      refusal.set_job(refused.job);
      refusal.set_reason(refused.reason);
      refusal.set_count(static_cast<uint64_t>(refused.count));
      refusal.set_seconds_ago(absl::ToDoubleSeconds(MonotonicNow() - refused.at));
    }
  }

  // No question is about a job without a name.
  absl::Status AdmitJob(const grpc::CallbackServerContext& context, const std::string& job) {
    absl::Status admitted = options_.gate->Admit(context, Verb::kQuery, job);
    if (admitted.ok() && job.empty()) {
      return absl::InvalidArgumentError("job is empty, expected its name");
    }
    return admitted;
  }

  // Answers from the store, on the reader's thread.
  grpc::ServerUnaryReactor* Read(grpc::CallbackServerContext* context,
                                 std::function<absl::Status()> question) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const bool posted = options_.reader->Post(
        [reactor, question = std::move(question)] { reactor->Finish(wire::ToGrpc(question())); });
    if (!posted) {
      reactor->Finish(wire::ToGrpc(absl::ResourceExhaustedError(absl::StrCat(
          Reader::kMaxWaiting, " questions wait for the store already, come back later"))));
    }
    return reactor;
  }

  const QueryOptions options_;
};

}  // namespace

std::unique_ptr<v1::Query::CallbackService> MakeQueryService(QueryOptions options) {
  return std::make_unique<QueryService>(std::move(options));
}

}  // namespace eplb
