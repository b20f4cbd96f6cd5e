// Answers the calls of ranks.
#include "server/rpc/balancer.h"

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

#include "server/rpc/all_gather.h"
#include "server/rpc/answer.h"

namespace eplb {
namespace {

// Returns how long a rank waits for the other ranks. The rest of its deadline is for the answer,
// which names the ranks that did not call.
absl::Duration PatienceOf(const grpc::CallbackServerContext& context) {
  constexpr absl::Duration kForTheAnswer = absl::Seconds(2);
  const absl::Duration left =
      absl::FromChrono(context.deadline() - std::chrono::system_clock::now());
  return std::max(left - kForTheAnswer, left / 2);
}

}  // namespace

SessionStream* BalancerService::Session(grpc::CallbackServerContext* context) {
  return StartSession(context, session_);
}

grpc::ServerUnaryReactor* BalancerService::AllGather(grpc::CallbackServerContext* context,
                                                     const v1::AllGatherRequest* request,
                                                     v1::AllGatherResponse* response) {
  const absl::Status status = Admit(*context, request->job());
  if (!status.ok()) return Done(context, status);
  return StartAllGather(*request, response, PatienceOf(*context), rendezvous_);
}

grpc::ServerUnaryReactor* BalancerService::ReserveVersion(grpc::CallbackServerContext* context,
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

grpc::ServerUnaryReactor* BalancerService::GetLeader(grpc::CallbackServerContext* context,
                                                     const v1::GetLeaderRequest* request,
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

absl::Status BalancerService::Admit(const grpc::CallbackServerContext& context,
                                    const std::string& job) {
  absl::Status status = session_.gate->Admit(context, Verb::kAllGather, job);
  if (status.ok() && draining_) status = absl::UnavailableError(kDrains);
  return status;
}

}  // namespace eplb
