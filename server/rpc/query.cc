#include "server/rpc/query.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "proto/wire/convert.h"
#include "proto/wire/status.h"
#include "server/runner/monotonic_clock.h"

namespace eplb {
namespace {

constexpr int32_t kDefaultEvents = 100;
constexpr uint32_t kMaxEvents = 1000;

void ToProto(const core::RankView& view, v1::RankStatus* out) {
  out->set_rank(static_cast<uint32_t>(view.rank));
  out->set_connected(view.connected);
  out->set_running_version(static_cast<uint64_t>(view.running_version));
  out->set_ready_version(static_cast<uint64_t>(view.ready_version));
  out->set_step(static_cast<uint64_t>(view.step));
}

void ToProto(const core::JobView& view, v1::JobStatus* out) {
  out->set_job(view.job);
  out->set_incarnation(view.incarnation);
  out->set_state(view.state);
  out->set_state_seconds(absl::ToDoubleSeconds(view.state_age));
  out->set_waiting_for(view.waiting_for);
  wire::ToProto(view.shape, out->mutable_shape());
  out->set_world_size(static_cast<uint32_t>(view.world_size));
  out->set_connected_ranks(static_cast<uint32_t>(view.connected_ranks));
  out->set_step(static_cast<uint64_t>(view.step));
  out->set_version(static_cast<uint64_t>(view.version));
  out->set_digest(view.digest.bytes.data(), view.digest.bytes.size());
  out->set_balancedness(view.balancedness);
  out->set_last_window_first_step(static_cast<uint64_t>(view.last_window_first_step));
  out->set_last_window_last_step(static_cast<uint64_t>(view.last_window_last_step));
  out->set_commits(static_cast<uint64_t>(view.commits));
  out->set_last_reason(view.last_reason);
  for (const core::RankView& rank : view.ranks) ToProto(rank, out->add_ranks());
}

void ToProto(const StoredEvent& stored, v1::JobEvent* out) {
  out->set_sequence(static_cast<uint64_t>(stored.sequence));
  out->set_unix_micros(absl::ToUnixMicros(stored.time));
  out->set_job(stored.event.job);
  out->set_name(stored.event.name);
  out->set_version(static_cast<uint64_t>(stored.event.version));
  out->set_reason(stored.event.reason);
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
    for (const core::JobView& view : options_.runner->Jobs()) {
      if (Allowed(peer, Verb::kQuery, view.job).ok()) ToProto(view, response->add_jobs());
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
    const absl::StatusOr<wire::PlacementBody> body =
        options_.runner->PlacementInForce(request->job());
    if (body.ok()) wire::ToProto(body->placement, body->version, response->mutable_placement());
    return Done(context, body.status());
  }

  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context,
                                       const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    if (request->limit() > kMaxEvents) {
      return Done(context, absl::InvalidArgumentError(absl::StrCat("limit is ", request->limit(),
                                                                   ", expected 0..", kMaxEvents)));
    }
    const int32_t limit =
        request->limit() == 0 ? kDefaultEvents : static_cast<int32_t>(request->limit());
    const absl::StatusOr<std::vector<StoredEvent>> events =
        options_.runner->Events(request->job(), limit);
    if (events.ok()) {
      for (const StoredEvent& event : *events) ToProto(event, response->add_events());
    }
    return Done(context, events.status());
  }

 private:
  // No question is about a job without a name.
  absl::Status AdmitJob(const grpc::CallbackServerContext& context, const std::string& job) {
    if (job.empty()) return absl::InvalidArgumentError("job is empty, expected its name");
    return options_.gate->Admit(context, Verb::kQuery, job);
  }

  const QueryOptions options_;
};

}  // namespace

std::unique_ptr<v1::Query::CallbackService> MakeQueryService(QueryOptions options) {
  return std::make_unique<QueryService>(std::move(options));
}

}  // namespace eplb
