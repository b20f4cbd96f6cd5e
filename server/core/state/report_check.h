// Checks of a load report before it is added to a window.
#pragma once

#include "absl/status/status.h"

#include "placement/topology.h"
#include "proto/wire/messages.h"

namespace eplb::core {

// errors: InvalidArgument, naming the field: steps out of order or negative, counts of another
// shape or below 0, parts out of order, outside the window or above its counts, splits of another
// shape or whose fullest GPU has more than all tokens or less than their mean. cost: O(L * E) a
// part.
absl::Status CheckReport(const wire::LoadReport& report, const Topology& topology);

}  // namespace eplb::core
