// Each question is admitted, then answered from memory or from the store.
#include "server/rpc/query.h"

#include <bit>
#include <functional>
#include <utility>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/status.h"
#include "server/rpc/answer.h"

namespace eplb {
namespace {

constexpr int32_t kDefaultLines = 100;
constexpr uint32_t kMaxLines = 1000;

// Returns the number of lines that a request asks for.
absl::StatusOr<int32_t> LimitOf(uint32_t limit, size_t most = kMaxLines) {
  if (limit > most) return InvalidInput("limit is ", limit, ", expected 0..", most);
  return limit == 0 ? kDefaultLines : static_cast<int32_t>(limit);
}

void AddLoads(const core::WindowView& window, v1::GetLoadResponse& out) {
  static_assert(std::endian::native == std::endian::little);  // the order of bytes in counts_u64
  const LoadMatrix& counts = window.load->counts();
  out.set_first_step(static_cast<uint64_t>(window.first_step));
  out.set_last_step(static_cast<uint64_t>(window.last_step));
  out.set_num_layers(static_cast<uint32_t>(counts.rows()));
  out.set_num_experts(static_cast<uint32_t>(counts.cols()));
  out.set_counts_u64(counts.data(), static_cast<size_t>(counts.size()) * sizeof(int64_t));
  if (window.on_gpus == nullptr) return;
  const RealMatrix& gpu_loads = window.on_gpus->loads;
  out.mutable_gpu_loads()->Assign(gpu_loads.data(), gpu_loads.data() + gpu_loads.size());
  const std::vector<int64_t>& versions = window.on_gpus->versions;
  out.mutable_versions()->Assign(versions.begin(), versions.end());
}

class QueryService : public v1::Query::CallbackService {
 public:
  explicit QueryService(QueryOptions options) : options_(std::move(options)) {}

  CallReactor* GetStatus(CallContext* context, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    const absl::Status admitted = options_.gate->Admit(*context, Verb::kQuery, /*job=*/"");
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
    AddRefusals(peer, *response);
    for (v1::JobStatus& job : options_.runner->Jobs()) {
      if (Allowed(peer, Verb::kQuery, job.job()).ok()) {
        *response->add_jobs() = std::move(job);
      } else {
        response->set_jobs_hidden(true);
      }
    }
    wire::ClipTexts(response);
    return Done(context, absl::OkStatus());
  }

  CallReactor* GetJob(CallContext* context, const v1::GetJobRequest* request,
                      v1::JobStatus* response) override {
    return Answer(context, request->job(), response, [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(*response, options_.runner->Job(request->job()));
      return absl::OkStatus();
    });
  }

  CallReactor* GetPlacement(CallContext* context, const v1::GetPlacementRequest* request,
                            v1::GetPlacementResponse* response) override {
    if (request->has_version()) {
      return Read(context, request->job(), [this, request, response]() -> absl::Status {
        EPLB_ASSIGN_OR_RETURN(
            const wire::PlacementBody body,
            options_.runner->PlacementOf(request->job(), Clamped(request->version())));
        wire::ToProto(body.placement, body.version, response->mutable_placement());
        return absl::OkStatus();
      });
    }
    return Answer(context, request->job(), response, [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(const wire::PlacementBody body,
                            options_.runner->PlacementInForce(request->job()));
      wire::ToProto(body.placement, body.version, response->mutable_placement());
      const absl::StatusOr<int64_t> next = options_.runner->NextVersion(request->job());
      if (next.ok()) response->set_next_version(static_cast<uint64_t>(*next));
      return absl::OkStatus();
    });
  }

  CallReactor* ListEvents(CallContext* context, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override {
    return Read(context, request->job(), [this, request, response]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(const int32_t limit, LimitOf(request->limit()));
      EPLB_ASSIGN_OR_RETURN(
          std::vector<v1::JobEvent> events,
          options_.runner->Events(request->job(), limit, Clamped(request->after_sequence())));
      for (v1::JobEvent& event : events) *response->add_events() = std::move(event);
      wire::ClipTexts(response);
      return absl::OkStatus();
    });
  }

  CallReactor* ListPlans(CallContext* context, const v1::ListPlansRequest* request,
                         v1::ListPlansResponse* response) override {
    return Answer(context, request->job(), response, [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(const int32_t limit, LimitOf(request->limit()));
      EPLB_ASSIGN_OR_RETURN(std::vector<v1::Plan> plans,
                            options_.runner->Plans(request->job(), limit));
      for (v1::Plan& plan : plans) *response->add_plans() = std::move(plan);
      return absl::OkStatus();
    });
  }

  CallReactor* ListWindows(CallContext* context, const v1::ListWindowsRequest* request,
                           v1::ListWindowsResponse* response) override {
    return Answer(context, request->job(), response, [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(const int32_t limit, LimitOf(request->limit(), kMaxPastWindows));
      EPLB_ASSIGN_OR_RETURN(
          std::vector<v1::Window> windows,
          options_.runner->Windows(request->job(), Clamped(request->after_window()), limit));
      for (v1::Window& window : windows) *response->add_windows() = std::move(window);
      return absl::OkStatus();
    });
  }

  CallReactor* GetPlan(CallContext* context, const v1::GetPlanRequest* request,
                       v1::Plan* response) override {
    return Answer(context, request->job(), response, [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(*response,
                            options_.runner->OnePlan(request->job(), Clamped(request->plan())));
      return absl::OkStatus();
    });
  }

  CallReactor* GetLoad(CallContext* context, const v1::GetLoadRequest* request,
                       v1::GetLoadResponse* response) override {
    return Answer(context, request->job(), response, [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(const core::WindowView window,
                            options_.runner->NewestWindow(request->job()));
      AddLoads(window, *response);
      return absl::OkStatus();
    });
  }

 private:
  // Adds the refusals of jobs that the caller may see.
  void AddRefusals(const PeerIdentity& peer, v1::GetStatusResponse& response) const {
    for (v1::Refusal& refused : options_.runner->Refusals()) {
      if (!Allowed(peer, Verb::kQuery, refused.job()).ok()) continue;
      *response.add_refusals() = std::move(refused);
    }
  }

  // Answers a question about a job from memory.
  template <class Response, class Question>
  CallReactor* Answer(CallContext* context, const std::string& job, Response* response,
                      Question question) {
    const absl::Status admitted = options_.gate->AdmitJob(*context, Verb::kQuery, job);
    const absl::Status answered = admitted.ok() ? question() : admitted;
    wire::ClipTexts(response);
    return Done(context, answered);
  }

  // Answers a question about a job from the store, on the reader's thread.
  CallReactor* Read(CallContext* context, const std::string& job,
                    std::function<absl::Status()> question) {
    const absl::Status admitted = options_.gate->AdmitJob(*context, Verb::kQuery, job);
    if (!admitted.ok()) return Done(context, admitted);
    CallReactor* const reactor = context->DefaultReactor();
    const bool posted = options_.reader->Post(
        [reactor, question = std::move(question)] { reactor->Finish(wire::ToGrpc(question())); });
    if (!posted) {
      reactor->Finish(wire::ToGrpc(ResourceExhausted(
          Reader::kMaxWaiting, " questions wait for the store already, retry later")));
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
