#include "server/rpc/query.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "proto/wire/convert.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/status.h"
#include "server/messages/records.h"
#include "server/messages/views.h"

namespace eplb {
namespace {

constexpr int32_t kDefaultLines = 100;
constexpr uint32_t kMaxLines = 1000;

// No version is as high as the number that this gives for one that does not fit.
int64_t ClampedVersion(uint64_t version) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(version, kMost));
}

// The number of lines that a request asks for.
absl::StatusOr<int32_t> LimitOf(uint32_t limit, size_t most = kMaxLines) {
  if (limit > most) {
    return absl::InvalidArgumentError(absl::StrCat("limit is ", limit, ", expected 0..", most));
  }
  return limit == 0 ? kDefaultLines : static_cast<int32_t>(limit);
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
    response->set_store(options_.store);
    response->set_leader(options_.leader);
    response->set_ready(ready.ok());
    response->set_not_ready_reason(std::string(ready.message()));
    for (const std::string& warning : options_.runner->Warnings()) response->add_warnings(warning);
    wire::ClipTexts(response);  // of the daemon; every job and refusal is clipped by itself
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
      for (const core::Plan& plan : *plans) {
        v1::Plan& message = *response->add_plans();
        ToProto(plan, &message);
        message.clear_times();  // of one at a time: they are as long as all else together
      }
    }
    return Done(context, plans.status());
  }

  grpc::ServerUnaryReactor* ListWindows(grpc::CallbackServerContext* context,
                                        const v1::ListWindowsRequest* request,
                                        v1::ListWindowsResponse* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    const absl::StatusOr<int32_t> limit = LimitOf(request->limit(), kMaxPastWindows);
    if (!limit.ok()) return Done(context, limit.status());
    const absl::StatusOr<std::vector<WindowFigures>> windows =
        options_.runner->Windows(request->job(), ClampedVersion(request->after_window()), *limit);
    if (windows.ok()) {
      for (const WindowFigures& figures : *windows) ToProto(figures, response->add_windows());
    }
    return Done(context, windows.status());
  }

  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::Plan* response) override {
    const absl::Status admitted = AdmitJob(*context, request->job());
    if (!admitted.ok()) return Done(context, admitted);
    const absl::StatusOr<core::Plan> plan =
        options_.runner->OnePlan(request->job(), ClampedVersion(request->plan()));
    if (plan.ok()) ToProto(*plan, response);
    return Done(context, plan.status());
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
      ToProto(refused, MonotonicNow(), response.add_refusals());
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
          Reader::kMaxWaiting, " questions wait for the store already, retry later"))));
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
