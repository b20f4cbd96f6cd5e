// Admin: the changes that an operator may make.
#ifndef EPLB_SERVER_RPC_ADMIN_H_
#define EPLB_SERVER_RPC_ADMIN_H_

#include <memory>

#include "server/rpc/gate.h"
#include "server/runner/runner.h"

#include "eplb/v1/admin.grpc.pb.h"

namespace eplb {

// Both outlive the service.
std::unique_ptr<v1::Admin::CallbackService> MakeAdminService(Runner* runner, Gate* gate);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_ADMIN_H_
