// The demonstration job's own collectives: stands for the all-to-all that keeps a real trainer's
// ranks in step.
#ifndef EPLB_CLIENT_TRAINER_JOB_CHANNEL_H_
#define EPLB_CLIENT_TRAINER_JOB_CHANNEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/control/control_channel.h"

namespace eplb {

// Everybody's values in rank order, [world_size * values.size()]; also a barrier. Every value <
// INT64_MAX, the same number of them on every rank. errors: as ControlChannel::AllReduceMin.
absl::StatusOr<std::vector<int64_t>> AllGather(ControlChannel& channel,
                                               std::span<const int64_t> values,
                                               absl::Duration timeout);

}  // namespace eplb

#endif  // EPLB_CLIENT_TRAINER_JOB_CHANNEL_H_
