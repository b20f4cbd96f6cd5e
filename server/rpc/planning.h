// Planning: the questions of serving engines.
#pragma once

#include <memory>

#include "server/rpc/gate.h"
#include "server/runner/runner.h"

#include "eplb/v1/planning.grpc.pb.h"

namespace eplb {

// Both outlive the service.
std::unique_ptr<v1::Planning::CallbackService> MakePlanningService(Runner* runner, Gate* gate);

}  // namespace eplb
