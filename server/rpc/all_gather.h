// Balancer.AllGather: the rendezvous as a call.
#ifndef EPLB_SERVER_RPC_ALL_GATHER_H_
#define EPLB_SERVER_RPC_ALL_GATHER_H_

#include "server/rpc/rendezvous.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

// request and response live until the returned reactor is done; it deletes itself. patience: how
// long the rank waits for the others.
grpc::ServerUnaryReactor* StartAllGather(const v1::AllGatherRequest& request,
                                         v1::AllGatherResponse* response, absl::Duration patience,
                                         Rendezvous* rendezvous);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_ALL_GATHER_H_
