// Answers the calls of ranks. AllGather is the rendezvous as a call.
#include "server/rpc/balancer.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"

#include "base/monotonic_clock.h"
#include "proto/wire/status.h"
#include "server/rpc/answer.h"

namespace eplb {
namespace {

// Returns how long a rank waits for the other ranks. The rest of its deadline is for the answer,
// which names the ranks that did not call.
absl::Duration PatienceOf(const CallContext& context) {
  constexpr absl::Duration kForTheAnswer = absl::Seconds(2);
  const absl::Duration left =
      absl::FromChrono(context.deadline() - std::chrono::system_clock::now());
  return std::max(left - kForTheAnswer, left / 2);
}

// A number that no int32 holds becomes -1, which the rendezvous refuses.
int32_t Narrow(uint32_t number) {
  return number > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())
             ? -1
             : static_cast<int32_t>(number);
}

// Returns -1 for a text that is no number. The rendezvous refuses it.
int32_t NumberOf(const std::string& key) {
  int32_t number = -1;
  return absl::SimpleAtoi(key, &number) ? number : -1;
}

// A rank's call that waits in the rendezvous. It deletes itself.
class AllGatherReactor : public CallReactor {
 public:
  // request, response, rendezvous: outlive the call. patience: how long the rank waits for the
  // others.
  AllGatherReactor(const v1::AllGatherRequest& request, v1::AllGatherResponse* response,
                   absl::Duration patience, Rendezvous* rendezvous)
      : response_(response), rendezvous_(rendezvous) {
    rendezvous_->Join(
        {.job = request.job(),
         .launch_id = request.launch_id(),
         .token = request.token(),
         .number = NumberOf(request.key()),
         .rank = Narrow(request.rank()),
         .world_size = Narrow(request.world_size()),
         .nonce = request.nonce(),
         .patience = patience,
         .blob = request.blob(),
         .previous = request.previous_blob()},
        this, [this](const absl::StatusOr<Rendezvous::Result>& result) { End(result); },
        MonotonicNow());
  }

  void OnCancel() override {
    // Otherwise the rendezvous has called End, or is about to.
    if (rendezvous_->Leave(this)) {
      Finish({grpc::StatusCode::CANCELLED, "the rank disconnected"});
    }
  }

  void OnDone() override { delete this; }

 private:
  void End(const absl::StatusOr<Rendezvous::Result>& result) {
    if (result.ok()) {
      for (const std::string& blob : (*result)->blobs) response_->add_blobs(blob);
      response_->set_token((*result)->token);
    }
    Finish(wire::ToGrpc(result.status()));
  }

  v1::AllGatherResponse* const response_;
  Rendezvous* const rendezvous_;
};

}  // namespace

SessionStream* BalancerService::Session(CallContext* context) {
  return StartSession(context, session_);
}

CallReactor* BalancerService::AllGather(CallContext* context, const v1::AllGatherRequest* request,
                                        v1::AllGatherResponse* response) {
  const absl::Status status = Admit(*context, request->job());
  if (!status.ok()) return Done(context, status);
  return new AllGatherReactor(*request, response, PatienceOf(*context), rendezvous_);
}

CallReactor* BalancerService::ReserveVersion(CallContext* context,
                                             const v1::ReserveVersionRequest* request,
                                             v1::ReserveVersionResponse* response) {
  const absl::Status status = Admit(*context, request->job());
  if (!status.ok()) return Done(context, status);
  auto* reactor = new OutcomeReactor([response](const core::ChangeOutcome& outcome) {
    response->set_version(static_cast<uint64_t>(outcome.version));
  });
  reactor->Start([this, request](auto done) {
    return session_.runner->ReserveVersion(request->job(), std::move(done));
  });
  return reactor;
}

CallReactor* BalancerService::GetLeader(CallContext* context, const v1::GetLeaderRequest* request,
                                        v1::GetLeaderResponse* response) {
  const absl::Status status = Admit(*context, request->job());
  if (!status.ok()) return Done(context, status);
  const absl::StatusOr<core::LeaderView> leader =
      session_.runner->Leader(request->job(), request->run_id());
  if (leader.ok()) {
    response->set_term(static_cast<uint64_t>(leader->term));
    response->set_connected_ranks(static_cast<uint32_t>(leader->connected_ranks));
    response->set_world_size(static_cast<uint32_t>(leader->world_size));
  }
  const int64_t election = session_.runner->election_term();
  response->set_election_term(static_cast<uint64_t>(election));
  return Done(context, election > 0 ? absl::OkStatus() : leader.status());
}

absl::Status BalancerService::Admit(const CallContext& context, const std::string& job) {
  absl::Status status = session_.gate->Admit(context, Verb::kAllGather, job);
  if (status.ok() && draining_) status = absl::UnavailableError(kDrains);
  return status;
}

}  // namespace eplb
