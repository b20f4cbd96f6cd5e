// ClientOptions checked, and what the environment adds to them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/tls_files.h"
#include "client/client.h"
#include "client/rows/paths/nccl_settings.h"
#include "placement/evaluate.h"
#include "placement/rank_grid.h"
#include "placement/topology.h"

namespace eplb {

// Names this library in Hello and in the start's comparison.
inline constexpr char kLibraryVersion[] = "0.1.0";

// The numbers of the job's shape, unchecked.
TopologyOptions ShapeOf(const ClientOptions& options);

// Returns the grid of the ranks. errors: see RankGrid::Make.
absl::StatusOr<RankGrid> GridOf(const ClientOptions& options);

// Returns the job's shape. errors: InvalidArgument beginning with the field at fault.
absl::StatusOr<Topology> CheckOptions(const ClientOptions& options);

// Returns the name of this run by options or launcher; the first that is set counts:
// options.run_id, EPLB_LAUNCH_ID, TORCHELASTIC_RUN_ID-TORCHELASTIC_RESTART_COUNT (torchrun's "none"
// is no id), SLURM_JOB_ID.SLURM_STEP_ID-SLURM_RESTART_COUNT. Empty if none is set.
std::string LaunchIdOf(const ClientOptions& options);
// The first two of these only, which are equal on all ranks. A launcher's may differ: processes of
// one run may run in several steps of a SLURM job. Empty without one.
std::string GivenLaunchId(const ClientOptions& options);

// The run: the launch id and what rank 0 drew, for a launcher may give an id twice.
// drawn: kDrawnLength characters. An empty launch id: the drawn ones alone.
std::string RunOf(const std::string& launch_id, const std::string& drawn);
inline constexpr size_t kDrawnLength = 16;

// Checks that ranks with these options can meet through a daemon, which has to distinguish runs
// that start at the same time. errors: InvalidArgument naming the field and what to set.
absl::Status CheckDaemonAllGather(const ClientOptions& options);

// Replaces options.endpoint by the list that it stands for: sources (base/endpoint_source.h) are
// read, which waits until start_deadline at most. REQUIRES: CheckOptions passed; options.endpoint
// not empty. errors: those of ReadEndpointSource, and InvalidArgument for what the source has.
absl::Status FindDaemons(ClientOptions& options);

// The daemons in the order of the list. REQUIRES: FindDaemons was OK.
std::vector<std::string> EndpointsOf(const ClientOptions& options);

// REQUIRES: CheckOptions passed.
SplitMode SplitOf(const ClientOptions& options);

// options.take_over, or EPLB_TAKE_OVER is set and neither empty nor 0.
bool TakesOver(const ClientOptions& options);

// With what the environment adds.
wire::TlsFiles TlsFilesOf(const DaemonTls& tls);

// EPLB_DISABLE is set and neither empty nor 0.
bool DisabledByEnvironment();

// `num_bytes` of the system's random numbers, in hexadecimal.
std::string DrawHex(int num_bytes);

}  // namespace eplb
