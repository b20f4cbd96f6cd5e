// The all-gather of a starting job through the daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/tls_files.h"

namespace eplb {

using DaemonAllGatherFunction =
    std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

struct DaemonAllGatherOptions {
  std::vector<std::string> endpoints;  // daemons that stand in for each other, at least one
  wire::TlsFiles tls;
  std::string job;
  std::string launch_id;
  int32_t rank = 0;
  int32_t world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // for each all-gather
};

// Makes the all-gather that MakeDaemonAllGather of client/client.h describes. threads: one caller
// of the result.
DaemonAllGatherFunction MakeAllGatherThroughDaemon(DaemonAllGatherOptions options);

}  // namespace eplb
