#include "server/rpc/admin.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/wire/convert.h"
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

 private:
  template <class Request>
  absl::StatusOr<core::Change> ChangeOf(const grpc::CallbackServerContext& context,
                                        const Request& request) const {
    const v1::Change& in = request.change();
    core::Change change{.job = in.job(),
                        .request_id = in.request_id(),
                        .comment = in.comment(),
                        .actor = ActorText(LocalPeer(), in.claimed_by())};
    if (in.has_expect_version()) change.expect_version = Clamped(in.expect_version());
    if (options_.authorise) {
      EPLB_ASSIGN_OR_RETURN(change.actor, options_.authorise(context, in));
    }
    EPLB_ASSIGN_OR_RETURN(change.verb, VerbOf(request));
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
