// An AllGather through rank 0's address, for launchers that give MASTER_ADDR and MASTER_PORT and
// nothing else.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/control_channel.h"
#include "placement/ids.h"

namespace eplb {

struct TcpAllGatherOptions {
  RankId rank;
  int32_t world_size = 1;
  std::string address = "127.0.0.1";  // numeric address of rank 0
  uint16_t port = 0;  // rank 0 listens here; the others connect, again and again until `timeout`
  absl::Duration timeout = absl::Seconds(60);  // limit of each all-gather
};

// Rank 0 binds at once, so that a port in use is an error here. errors: Unavailable, naming address
// and port; an all-gather itself fails with DeadlineExceeded naming the ranks that did not come.
// Blobs are at most 1 MiB.
absl::StatusOr<AllGather> MakeTcpAllGather(const TcpAllGatherOptions& options);

}  // namespace eplb
