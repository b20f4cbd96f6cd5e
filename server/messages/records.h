// Records of a job as messages: for the store, and for answers.
#pragma once

#include "absl/status/statusor.h"

#include "server/core/values/record.h"
#include "server/core/values/views.h"

#include "eplb/v1/query.pb.h"

namespace eplb {

v1::JobState ToProto(core::JobState state);
v1::RunEnding ToProto(core::RunEnding how);
v1::PlanResult ToProto(core::PlanResult result);

void ToProto(const core::TriedCandidate& candidate, v1::TriedCandidate* out);
void ToProto(const core::Plan& plan, v1::Plan* out);
// Returns the same plan, with its time to the microsecond. errors: DataLoss for an unknown result
// or a number that no daemon writes.
absl::StatusOr<core::Plan> FromProto(const v1::Plan& plan);

void ToProto(const core::RunEnd& end, v1::RunEnd* out);
// errors: DataLoss for an unknown ending or a number that no daemon writes.
absl::StatusOr<core::RunEnd> FromProto(const v1::RunEnd& end);

void ToProto(const core::StoredEvent& stored, v1::JobEvent* out);
// errors: DataLoss for a number that no daemon writes.
absl::StatusOr<core::StoredEvent> FromProto(const v1::JobEvent& event);

void ToProto(const core::WindowFigures& figures, v1::Window* out);
// errors: as those of an event.
absl::StatusOr<core::WindowFigures> FromProto(const v1::Window& window);

void ToProto(const core::WindowView& window, v1::GetLoadResponse* out);

}  // namespace eplb
