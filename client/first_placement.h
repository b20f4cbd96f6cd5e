// The placement of a job before any decision: rank 0 chooses it alone, and all ranks get it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/client.h"
#include "client/rows/control/control_channel.h"
#include "client/session/member.h"

namespace eplb {

// Agreement of the ranks before weights exist.
struct JobStart {
  std::string run_id;
  std::string secret;  // secret of the channels between ranks, 64 hexadecimal characters
  RunningPlacement running;
};

// Rank 0's choice: what options.initial_placement names, else the daemon's stored placement when
// it answers within 5 s (and start_deadline) and has the job's shape, else the static one. That has
// version 0 unless the daemon has the job in another shape: then a version that the daemon reserves
// for this run, for 0 was the static layout of the old shape. A placement that the option names and
// the daemon does not know gets one as well.
// errors: InvalidArgument or NotFound for the file, naming it; with require_daemon why the daemon
// did not answer. Without it, a daemon that is away is none.
absl::StatusOr<RunningPlacement> ChooseFirstPlacement(const ClientOptions& options,
                                                      const Topology& topology);

// Collective. disabled: EPLB_DISABLE on this rank; then the placement is static. own_error: why
// this rank cannot start, or OK. errors: as RunStartRound.
absl::StatusOr<JobStart> StartJob(const ClientOptions& options, const Topology& topology,
                                  bool disabled, const absl::Status& own_error,
                                  const AllGather& all_gather);

}  // namespace eplb
