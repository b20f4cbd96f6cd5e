// Refusals and windows as messages, for gRPC and for HTTP.
#pragma once

#include "absl/time/time.h"

#include "server/core/values/views.h"

#include "eplb/v1/query.pb.h"

namespace eplb {

// now: on the clock of RefusedJob::at.
void ToProto(const core::RefusedJob& refused, absl::Time now, v1::Refusal* out);

void ToProto(const core::WindowView& window, v1::GetLoadResponse* out);

}  // namespace eplb
