// ClientOptions checked, and what the environment adds to them.
#ifndef EPLB_CLIENT_OPTIONS_H_
#define EPLB_CLIENT_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/client.h"
#include "client/migration/nccl_settings.h"
#include "placement/rank_grid.h"
#include "placement/topology.h"
#include "proto/wire/tls_files.h"

namespace eplb {

// Names this library in Hello and in the start's comparison.
inline constexpr char kLibraryVersion[] = "0.1.0";

// The numbers of the job's shape, unchecked.
TopologyOptions ShapeOf(const ClientOptions& options);

// Where its ranks stand. errors: as RankGrid::Make.
absl::StatusOr<RankGrid> GridOf(const ClientOptions& options);

// The job's shape. errors: InvalidArgument beginning with the field at fault. `inproc` says whether
// the caller brought its own channels, the only case for transport "inproc".
absl::StatusOr<Topology> CheckOptions(const ClientOptions& options, bool inproc);

// The incarnation that options or launcher give: the option, else
// TORCHELASTIC_RUN_ID-TORCHELASTIC_RESTART_COUNT (torchrun's "none" is no id), else
// SLURM_JOB_ID-SLURM_RESTART_COUNT; empty when there is none and rank 0 has to draw one.
std::string KnownIncarnation(const ClientOptions& options);

// With what the environment adds.
wire::TlsFiles TlsFilesOf(const DaemonTls& tls);

// With what the environment adds. errors: InvalidArgument beginning with the field or variable at
// fault.
absl::StatusOr<NcclSettings> NcclSettingsOf(const NcclTuning& tuning);

// EPLB_DISABLE is set and neither empty nor 0.
bool DisabledByEnvironment();

// `num_bytes` of the system's random numbers, in hexadecimal.
std::string DrawHex(int num_bytes);

}  // namespace eplb

#endif  // EPLB_CLIENT_OPTIONS_H_
