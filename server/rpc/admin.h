// Admin: what an operator may change.
#ifndef EPLB_SERVER_RPC_ADMIN_H_
#define EPLB_SERVER_RPC_ADMIN_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "server/runner/runner.h"

#include "eplb/v1/admin.grpc.pb.h"

namespace eplb {

struct AdminOptions {
  Runner* runner = nullptr;  // outlives the service
  // The identity of who asks, for the audit log, when it may change this job.
  // errors: PermissionDenied, Unauthenticated.
  std::function<absl::StatusOr<std::string>(const grpc::CallbackServerContext& context,
                                            const std::string& job)>
      authorise = {};
};

// Without `authorise` everybody who reaches the address is "local".
std::unique_ptr<v1::Admin::CallbackService> MakeAdminService(AdminOptions options);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_ADMIN_H_
