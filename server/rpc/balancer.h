// Balancer: the calls of ranks, which open a stream, meet at the start and find their leader.
#ifndef EPLB_SERVER_RPC_BALANCER_H_
#define EPLB_SERVER_RPC_BALANCER_H_

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include <grpcpp/grpcpp.h>

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

  SessionStream* Session(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* AllGather(grpc::CallbackServerContext* context,
                                      const v1::AllGatherRequest* request,
                                      v1::AllGatherResponse* response) override;
  grpc::ServerUnaryReactor* ReserveVersion(grpc::CallbackServerContext* context,
                                           const v1::ReserveVersionRequest* request,
                                           v1::ReserveVersionResponse* response) override;
  grpc::ServerUnaryReactor* GetLeader(grpc::CallbackServerContext* context,
                                      const v1::GetLeaderRequest* request,
                                      v1::GetLeaderResponse* response) override;

  // Refuses every later call except Session.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }

 private:
  // Admits a call that is no stream, of a starting or training rank.
  absl::Status Admit(const grpc::CallbackServerContext& context, const std::string& job);

  const SessionServices session_;
  Rendezvous* const rendezvous_;
  std::atomic<bool> draining_ = false;
};

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_BALANCER_H_
