#include "server/rpc/admin.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/status.h"
#include "server/messages/records.h"
#include "server/rpc/gate.h"

namespace eplb {

namespace {

int64_t Clamped(uint64_t number) {
  return static_cast<int64_t>(
      std::min<uint64_t>(number, static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
}

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

// The change that a preview is of, and what it would do. errors: InvalidArgument for none.
struct Previewed {
  const v1::Change* change = nullptr;
  core::Verb verb;
};

template <class Request>
absl::StatusOr<Previewed> PreviewedBy(const Request& request) {
  EPLB_ASSIGN_OR_RETURN(core::Verb verb, VerbOf(request));
  return Previewed{.change = &request.change(), .verb = std::move(verb)};
}

absl::StatusOr<Previewed> PreviewedBy(const v1::PreviewRequest& request) {
  switch (request.change_case()) {
    case v1::PreviewRequest::kRebalance:
      return PreviewedBy(request.rebalance());
    case v1::PreviewRequest::kPause:
      return PreviewedBy(request.pause());
    case v1::PreviewRequest::kResume:
      return PreviewedBy(request.resume());
    case v1::PreviewRequest::kRollback:
      return PreviewedBy(request.rollback());
    case v1::PreviewRequest::kSetPolicy:
      return PreviewedBy(request.set_policy());
    case v1::PreviewRequest::kForget:
      return PreviewedBy(request.forget());
    case v1::PreviewRequest::CHANGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "change is not set, expected one that this daemon knows: nothing can be previewed");
}

// Finished by the core's thread, or by the desk's deadline; none of gRPC's threads waits.
class ChangeReactor : public grpc::ServerUnaryReactor {
 public:
  explicit ChangeReactor(v1::AdminResponse* response) : response_(response) {}

  void Start(absl::StatusOr<core::Change> change, Runner* runner) {
    absl::Status status = change.status();
    if (status.ok()) {
      status = runner->Ask(*std::move(change),
                           [this](const absl::StatusOr<core::ChangeOutcome>& out) { End(out); });
      if (status.ok()) return;  // ends by End, and may have ended already
    }
    Finish(wire::ToGrpc(status));
  }

  void OnDone() override { delete this; }

 private:
  void End(const absl::StatusOr<core::ChangeOutcome>& outcome) {
    if (outcome.ok()) {
      response_->set_version(static_cast<uint64_t>(outcome->version));
      response_->set_state(ToProto(outcome->state));
      response_->set_outcome(outcome->outcome);
      response_->set_before(outcome->before);
      response_->set_after(outcome->after);
      wire::ClipTexts(response_);
    }
    Finish(wire::ToGrpc(outcome.status()));
  }

  v1::AdminResponse* const response_;
};

class AdminService : public v1::Admin::CallbackService {
 public:
  explicit AdminService(AdminOptions options) : options_(std::move(options)) {}

  grpc::ServerUnaryReactor* Rebalance(grpc::CallbackServerContext* context,
                                      const v1::RebalanceRequest* request,
                                      v1::AdminResponse* response) override {
    return Run(*context, *request, response);
  }
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const v1::PauseRequest* request,
                                  v1::AdminResponse* response) override {
    return Run(*context, *request, response);
  }
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::AdminResponse* response) override {
    return Run(*context, *request, response);
  }
  grpc::ServerUnaryReactor* Rollback(grpc::CallbackServerContext* context,
                                     const v1::RollbackRequest* request,
                                     v1::AdminResponse* response) override {
    return Run(*context, *request, response);
  }
  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest* request,
                                      v1::AdminResponse* response) override {
    return Run(*context, *request, response);
  }
  grpc::ServerUnaryReactor* Forget(grpc::CallbackServerContext* context,
                                   const v1::ForgetRequest* request,
                                   v1::AdminResponse* response) override {
    return Run(*context, *request, response);
  }
  grpc::ServerUnaryReactor* Preview(grpc::CallbackServerContext* context,
                                    const v1::PreviewRequest* request,
                                    v1::AdminResponse* response) override {
    auto* reactor = new ChangeReactor(response);
    absl::StatusOr<core::Change> change = PreviewOf(*context, *request);
    reactor->Start(std::move(change), options_.runner);
    return reactor;
  }

 private:
  absl::StatusOr<core::Change> PreviewOf(const grpc::CallbackServerContext& context,
                                         const v1::PreviewRequest& request) const {
    EPLB_ASSIGN_OR_RETURN(Previewed previewed, PreviewedBy(request));
    EPLB_ASSIGN_OR_RETURN(core::Change change, HeadOf(context, *previewed.change));
    change.verb = std::move(previewed.verb);
    change.preview = true;
    return change;
  }

  template <class Request>
  absl::StatusOr<core::Change> ChangeOf(const grpc::CallbackServerContext& context,
                                        const Request& request) const {
    EPLB_ASSIGN_OR_RETURN(core::Change change, HeadOf(context, request.change()));
    EPLB_ASSIGN_OR_RETURN(change.verb, VerbOf(request));
    return change;
  }

  // Who asks for what, without the verb.
  absl::StatusOr<core::Change> HeadOf(const grpc::CallbackServerContext& context,
                                      const v1::Change& in) const {
    core::Change change{.job = in.job(),
                        .request_id = in.request_id(),
                        .comment = in.comment(),
                        .actor = ActorText(LocalPeer(), in.claimed_by())};
    if (in.has_expect_version()) change.expect_version = Clamped(in.expect_version());
    if (options_.authorise) {
      EPLB_ASSIGN_OR_RETURN(change.actor, options_.authorise(context, in));
    }
    return change;
  }

  template <class Request>
  grpc::ServerUnaryReactor* Run(const grpc::CallbackServerContext& context, const Request& request,
                                v1::AdminResponse* response) {
    auto* reactor = new ChangeReactor(response);
    reactor->Start(ChangeOf(context, request), options_.runner);
    return reactor;
  }

  const AdminOptions options_;
};

}  // namespace

std::unique_ptr<v1::Admin::CallbackService> MakeAdminService(AdminOptions options) {
  return std::make_unique<AdminService>(std::move(options));
}

namespace {

// Finished by the core's thread, or by the desk's deadline; none of gRPC's threads waits.
class ReserveReactor : public grpc::ServerUnaryReactor {
 public:
  explicit ReserveReactor(v1::ReserveVersionResponse* response) : response_(response) {}

  void Start(const v1::ReserveVersionRequest& request, Runner* runner) {
    const absl::Status status = runner->ReserveVersion(
        request.job(), [this](const absl::StatusOr<core::ChangeOutcome>& outcome) {
          if (outcome.ok()) response_->set_version(static_cast<uint64_t>(outcome->version));
          Finish(wire::ToGrpc(outcome.status()));
        });
    if (!status.ok()) Finish(wire::ToGrpc(status));
  }

  void OnDone() override { delete this; }

 private:
  v1::ReserveVersionResponse* const response_;
};

}  // namespace

grpc::ServerUnaryReactor* StartReserveVersion(const v1::ReserveVersionRequest& request,
                                              v1::ReserveVersionResponse* response,
                                              Runner* runner) {
  auto* reactor = new ReserveReactor(response);
  reactor->Start(request, runner);
  return reactor;
}

}  // namespace eplb
