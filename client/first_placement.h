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

// The arrays behind PlacementView: the same addresses for the life of the client.

// Memory: L * (S + E * (S - E + 2)) int32. Threads: the training thread.
class PlacementTables {
 public:
  PlacementTables(const RunningPlacement& running, GpuId gpu);
  PlacementTables(const PlacementTables&) = delete;
  PlacementTables& operator=(const PlacementTables&) = delete;

  // Writes another placement of the same shape into the arrays.
  void Update(const RunningPlacement& running);
  const PlacementView& view() const { return view_; }

 private:
  std::vector<int32_t> physical_to_logical_;  // [L, S]
  std::vector<int32_t> replica_count_;        // [L, E]
  std::vector<int32_t> logical_to_physical_;  // [L, E, S - E + 1], -1 padded
  PlacementView view_;
};

}  // namespace eplb
