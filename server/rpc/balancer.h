// Balancer: the calls of ranks, which open a stream, meet at the start and find their leader.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include <grpcpp/grpcpp.h>

#include "server/rpc/answer.h"
#include "server/rpc/rendezvous.h"
#include "server/rpc/session.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

using BalancerBase = v1::Balancer::WithRawCallbackMethod_Session<
    v1::Balancer::WithCallbackMethod_AllGather<v1::Balancer::WithCallbackMethod_ReserveVersion<
        v1::Balancer::WithCallbackMethod_GetLeader<v1::Balancer::Service>>>>;

class BalancerService : public BalancerBase {
 public:
  static constexpr char kDrains[] = "the daemon drains, retry later";

  // rendezvous: outlives the service.
  BalancerService(const SessionServices& session, Rendezvous* rendezvous)
      : session_(session), rendezvous_(rendezvous) {}

  SessionStream* Session(CallContext* context) override;
  CallReactor* AllGather(CallContext* context, const v1::AllGatherRequest* request,
                         v1::AllGatherResponse* response) override;
  CallReactor* ReserveVersion(CallContext* context, const v1::ReserveVersionRequest* request,
                              v1::ReserveVersionResponse* response) override;
  CallReactor* GetLeader(CallContext* context, const v1::GetLeaderRequest* request,
                         v1::GetLeaderResponse* response) override;

  // Refuses every later call except Session.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }

 private:
  // Admits a call that is no stream, of a starting or training rank.
  absl::Status Admit(const CallContext& context, const std::string& job);

  const SessionServices session_;
  Rendezvous* const rendezvous_;
  std::atomic<bool> draining_ = false;
};

}  // namespace eplb
