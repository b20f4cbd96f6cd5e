// Settings of the NCCL communicators that move expert rows, and the environment variables that
// change their behaviour; docs/nccl-settings.md has the reasons.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/ids.h"

namespace eplb {

// All fields but traffic_class must be equal on all ranks.
struct NcclSettings {
  int32_t max_ctas = 16;              // blocks, and channels, of a send or receive [1, 64]
  int32_t channels_per_net_peer = 8;  // [1, 64], from NCCL 2.28 on
  // -1: EPLB_NCCL_TRAFFIC_CLASS; if that is not set, NCCL's default. From NCCL 2.26.2 on.
  int32_t traffic_class = -1;
  // Bytes of one group, a multiple of 64 [64 KiB, 1 GiB]. 0: 16 MiB between nodes, and on one node
  // the size that fills 8 channels. Two or four buffers have this size, so that one is packed while
  // another is sent. At 50 GB/s a piece of 16 MiB takes 0.34 ms, and the start of a group 0.05 ms.
  int64_t piece_bytes = 0;
  // Largest EP group whose pairs all connect at the start [0, 4096]. A pair on one node costs NCCL
  // 12 MiB of the device a channel, and a round here about a millisecond.
  int32_t warm_up_ranks = 64;
};

// The ranks of a communicator.
struct NcclRanks {
  int32_t num_ranks = 1;
  bool on_one_node = false;
};

// boot_ids: BootId() of all ranks. Ranks without one are on different nodes.
NcclRanks NcclRanksOf(std::span<const RankId> ep_group, std::span<const std::string> boot_ids);

// Returns the channels over which NCCL spreads a send or receive of `bytes`, if NVLink connects all
// GPUs of a node. A channel moves 20 to 25 GB/s. source: NCCL 2.28.9, src/enqueue.cc
// (addP2pToPlan) and src/graph/paths.cc (ncclTopoComputeP2pChannels); 2.30.7 has the same rule.
int32_t NcclChannels(int64_t bytes, const NcclRanks& ranks, const NcclSettings& settings);

// Returns `settings` with a piece_bytes instead of 0: 16 MiB, and on one node as much as 8 channels
// take, if max_ctas allows 8.
NcclSettings WithPieceBytes(NcclSettings settings, const NcclRanks& ranks);

// errors: InvalidArgument beginning with the field at fault.
absl::Status CheckNcclSettings(const NcclSettings& settings);

// Checks settings, and replaces a traffic_class of -1 by EPLB_NCCL_TRAFFIC_CLASS. errors:
// InvalidArgument, see CheckNcclSettings; also for a variable that is not a number from 0 on.
absl::StatusOr<NcclSettings> WithNcclEnvironment(NcclSettings settings);

using NamedTexts = std::vector<std::pair<std::string, std::string>>;
// Returns the settings by their names; -1 is "default".
NamedTexts TellNcclSettings(const NcclSettings& settings);
// Returns the variables that are set and change the speed or the path of NCCL's transfers, by name.
// A nccl.conf file is not read.
NamedTexts TellNcclEnvironment();

// errors: FailedPrecondition for a variable with which NCCL's calls would wait without an end.
absl::Status CheckNcclEnvironment();

}  // namespace eplb
