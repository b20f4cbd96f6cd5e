// Each request becomes a change, which the core answers.
#include "server/rpc/admin.h"

#include <utility>

#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/message_texts.h"
#include "server/rpc/answer.h"

namespace eplb {

namespace {

absl::StatusOr<core::Verb> VerbOf(const v1::RebalanceRequest& request) {
  return core::Rebalance{.force = request.force()};
}
absl::StatusOr<core::Verb> VerbOf(const v1::PauseRequest&) { return core::Pause{}; }
absl::StatusOr<core::Verb> VerbOf(const v1::ResumeRequest&) { return core::Resume{}; }
absl::StatusOr<core::Verb> VerbOf(const v1::RollbackRequest& request) {
  core::Rollback rollback;
  if (request.has_to_version()) rollback.to_version = Clamped(request.to_version());
  return rollback;
}
absl::StatusOr<core::Verb> VerbOf(const v1::SetPolicyRequest& request) {
  EPLB_ASSIGN_OR_RETURN(wire::SettingsPatch patch, wire::FromProto(request.settings()));
  return core::SetPolicy{std::move(patch)};
}

absl::StatusOr<core::Verb> VerbOf(const v1::ForgetRequest&) { return core::ForgetJob{}; }

class AdminService : public v1::Admin::CallbackService {
 public:
  AdminService(Runner* runner, Gate* gate) : runner_(runner), gate_(gate) {}

  CallReactor* Rebalance(CallContext* context, const v1::RebalanceRequest* request,
                         v1::AdminResponse* response) override {
    return Run(ChangeOf(*context, *request), response);
  }
  CallReactor* Pause(CallContext* context, const v1::PauseRequest* request,
                     v1::AdminResponse* response) override {
    return Run(ChangeOf(*context, *request), response);
  }
  CallReactor* Resume(CallContext* context, const v1::ResumeRequest* request,
                      v1::AdminResponse* response) override {
    return Run(ChangeOf(*context, *request), response);
  }
  CallReactor* Rollback(CallContext* context, const v1::RollbackRequest* request,
                        v1::AdminResponse* response) override {
    return Run(ChangeOf(*context, *request), response);
  }
  CallReactor* SetPolicy(CallContext* context, const v1::SetPolicyRequest* request,
                         v1::AdminResponse* response) override {
    return Run(ChangeOf(*context, *request), response);
  }
  CallReactor* Forget(CallContext* context, const v1::ForgetRequest* request,
                      v1::AdminResponse* response) override {
    return Run(ChangeOf(*context, *request), response);
  }
  CallReactor* Preview(CallContext* context, const v1::PreviewRequest* request,
                       v1::AdminResponse* response) override {
    absl::StatusOr<core::Change> change = PreviewedBy(*context, *request);
    if (change.ok()) change->preview = true;
    return Run(std::move(change), response);
  }

 private:
  // errors: those of Gate::AdmitJob, and of a request that makes no sense.
  template <class Request>
  absl::StatusOr<core::Change> ChangeOf(const CallContext& context, const Request& request) const {
    const v1::Change& in = request.change();
    EPLB_RETURN_IF_ERROR(gate_->AdmitJob(context, Verb::kAdmin, in.job()));
    core::Change change{.job = in.job(),
                        .request_id = in.request_id(),
                        .comment = in.comment(),
                        .actor = gate_->ActorOf(context, in.claimed_by())};
    if (in.has_expect_version()) change.expect_version = Clamped(in.expect_version());
    EPLB_ASSIGN_OR_RETURN(change.verb, VerbOf(request));
    return change;
  }

  absl::StatusOr<core::Change> PreviewedBy(const CallContext& context,
                                           const v1::PreviewRequest& request) const {
    switch (request.change_case()) {
      case v1::PreviewRequest::kRebalance:
        return ChangeOf(context, request.rebalance());
      case v1::PreviewRequest::kPause:
        return ChangeOf(context, request.pause());
      case v1::PreviewRequest::kResume:
        return ChangeOf(context, request.resume());
      case v1::PreviewRequest::kRollback:
        return ChangeOf(context, request.rollback());
      case v1::PreviewRequest::kSetPolicy:
        return ChangeOf(context, request.set_policy());
      case v1::PreviewRequest::kForget:
        return ChangeOf(context, request.forget());
      case v1::PreviewRequest::CHANGE_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError(
        "change is not set, expected one that this daemon knows: nothing can be previewed");
  }

  CallReactor* Run(absl::StatusOr<core::Change> change, v1::AdminResponse* response) {
    auto* reactor = new OutcomeReactor([response](const core::ChangeOutcome& outcome) {
      response->set_version(static_cast<uint64_t>(outcome.version));
      response->set_state(outcome.state);
      response->set_outcome(outcome.outcome);
      response->set_before(outcome.before);
      response->set_after(outcome.after);
      wire::ClipTexts(response);
    });
    reactor->Start([&](auto done) {
      return change.ok() ? runner_->Ask(*std::move(change), std::move(done)) : change.status();
    });
    return reactor;
  }

  Runner* const runner_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<v1::Admin::CallbackService> MakeAdminService(Runner* runner, Gate* gate) {
  return std::make_unique<AdminService>(runner, gate);
}

}  // namespace eplb
