// Admin: the changes that an operator may make.
#pragma once

#include <memory>

#include "server/rpc/gate.h"
#include "server/runner/runner.h"

#include "eplb/v1/admin.grpc.pb.h"

namespace eplb {

// Both outlive the service.
std::unique_ptr<v1::Admin::CallbackService> MakeAdminService(Runner* runner, Gate* gate);

}  // namespace eplb
