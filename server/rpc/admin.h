// Admin: what an operator may change.
#ifndef EPLB_SERVER_RPC_ADMIN_H_
#define EPLB_SERVER_RPC_ADMIN_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include <grpcpp/grpcpp.h>

#include "server/runner/runner.h"

#include "eplb/v1/admin.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

struct AdminOptions {
  Runner* runner = nullptr;  // outlives the service
  // Who asks, as the audit log shows it, when the caller may change this job.
  // errors: PermissionDenied, Unauthenticated.
  std::function<absl::StatusOr<std::string>(const grpc::CallbackServerContext& context,
                                            const v1::Change& change)>
      authorise = {};
};

// Without `authorise` everybody who reaches the address may change every job.
std::unique_ptr<v1::Admin::CallbackService> MakeAdminService(AdminOptions options);

// Balancer.ReserveVersion: a version number of its own for a placement that a starting job brings.

// The core's thread answers, behind its write, or the deadline of the runner's desk. request and
// response live until the returned reactor is done; it deletes itself.
grpc::ServerUnaryReactor* StartReserveVersion(const v1::ReserveVersionRequest& request,
                                              v1::ReserveVersionResponse* response, Runner* runner);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_ADMIN_H_
