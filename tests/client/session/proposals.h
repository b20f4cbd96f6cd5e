// Proposals as a daemon makes them, for the tests of the session and of the client.
#pragma once

#include <cstdint>

#include "client/session/member.h"
#include "placement/placement.h"
#include "proto/wire/messages.h"

namespace eplb {

RunningPlacement Running(int64_t version, const Placement& placement);

// 3 layers, 4 experts on 4 slots of 2 GPUs.
Topology SmallTopology();

// `placement` with the experts of two slots of a layer exchanged.
Placement Swapped(const Placement& placement, int32_t layer, int32_t slot, int32_t other_slot);

// Proposes the layers in which `target` differs from what runs.
wire::Propose ProposeTo(const RunningPlacement& running, const Placement& target, int64_t version,
                        int64_t term);

}  // namespace eplb
