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
  // Who asks, as the audit log shows it, when the caller may change this job.
  // errors: PermissionDenied, Unauthenticated.
  std::function<absl::StatusOr<std::string>(const grpc::CallbackServerContext& context,
                                            const v1::Change& change)>
      authorise = {};
};

// Without `authorise` everybody who reaches the address may change every job.
std::unique_ptr<v1::Admin::CallbackService> MakeAdminService(AdminOptions options);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_ADMIN_H_
