// Balancer.ReserveVersion: a version number of its own for a placement that a starting job brings.
#ifndef EPLB_SERVER_RPC_RESERVE_VERSION_H_
#define EPLB_SERVER_RPC_RESERVE_VERSION_H_

#include <grpcpp/grpcpp.h>

#include "server/runner/runner.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

// The core's thread answers, behind its write, or the deadline of the runner's desk. request and
// response live until the returned reactor is done; it deletes itself.
grpc::ServerUnaryReactor* StartReserveVersion(const v1::ReserveVersionRequest& request,
                                              v1::ReserveVersionResponse* response, Runner* runner);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_RESERVE_VERSION_H_
