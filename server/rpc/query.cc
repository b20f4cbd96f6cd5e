// Each question is admitted, then answered from memory or from the store.
#include "server/rpc/query.h"

#include <functional>
#include <utility>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/status.h"
#include "server/messages/records.h"
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
    return Answer(context, request->job(), [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(*response, options_.runner->Job(request->job()));
      wire::ClipTexts(response);
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
    return Answer(context, request->job(), [&]() -> absl::Status {
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
          const std::vector<StoredEvent> events,
          options_.runner->Events(request->job(), limit, Clamped(request->after_sequence())));
      for (const StoredEvent& event : events) ToProto(event, response->add_events());
      return absl::OkStatus();
    });
  }

  CallReactor* ListPlans(CallContext* context, const v1::ListPlansRequest* request,
                         v1::ListPlansResponse* response) override {
    return Answer(context, request->job(), [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(const int32_t limit, LimitOf(request->limit()));
      EPLB_ASSIGN_OR_RETURN(const std::vector<core::Plan> plans,
                            options_.runner->Plans(request->job(), limit));
      for (const core::Plan& plan : plans) {
        v1::Plan& message = *response->add_plans();
        ToProto(plan, &message);
        message.clear_times();  // GetPlan returns them: they are as long as the rest of the plan
      }
      return absl::OkStatus();
    });
  }

  CallReactor* ListWindows(CallContext* context, const v1::ListWindowsRequest* request,
                           v1::ListWindowsResponse* response) override {
    return Answer(context, request->job(), [&]() -> absl::Status {
      EPLB_ASSIGN_OR_RETURN(const int32_t limit, LimitOf(request->limit(), kMaxPastWindows));
      EPLB_ASSIGN_OR_RETURN(
          const std::vector<WindowFigures> windows,
          options_.runner->Windows(request->job(), Clamped(request->after_window()), limit));
      for (const WindowFigures& figures : windows) ToProto(figures, response->add_windows());
      return absl::OkStatus();
    });
  }

  CallReactor* GetPlan(CallContext* context, const v1::GetPlanRequest* request,
                       v1::Plan* response) override {
    return AnswerWith(context, request->job(), response, [&] {
      return options_.runner->OnePlan(request->job(), Clamped(request->plan()));
    });
  }

  CallReactor* GetLoad(CallContext* context, const v1::GetLoadRequest* request,
                       v1::GetLoadResponse* response) override {
    return AnswerWith(context, request->job(), response,
                      [&] { return options_.runner->NewestWindow(request->job()); });
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
  template <class Question>
  CallReactor* Answer(CallContext* context, const std::string& job, Question question) {
    const absl::Status admitted = options_.gate->AdmitJob(*context, Verb::kQuery, job);
    return Done(context, admitted.ok() ? question() : admitted);
  }

  // Answers with the message of one object, which `question` returns.
  template <class Response, class Question>
  CallReactor* AnswerWith(CallContext* context, const std::string& job, Response* response,
                          Question question) {
    return Answer(context, job, [&] {
      const auto object = question();
      if (object.ok()) ToProto(*object, response);
      return object.status();
    });
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
