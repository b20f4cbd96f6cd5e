// What our NCCL communicators are asked for, and which variables of the environment change what
// they do; docs/nccl-settings.md says why.
#ifndef EPLB_CLIENT_ROWS_PATHS_NCCL_SETTINGS_H_
#define EPLB_CLIENT_ROWS_PATHS_NCCL_SETTINGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/ids.h"

namespace eplb {

struct NcclSettings {
  int32_t max_ctas = 16;              // 1..64; blocks, and channels, of a send or receive
  int32_t channels_per_net_peer = 8;  // 1..64, from NCCL 2.28 on
  int32_t traffic_class = -1;         // -1: NCCL's; from NCCL 2.26.2 on
  // Of one group; a multiple of 64 from 64 KiB to 1 GiB. There are two or four buffers of it, so
  // that one is packed while another is sent: at 50 GB/s a piece of 16 MiB takes 0.34 ms, and a
  // group's start some 0.05 ms. 0: WithPieceBytes chooses.
  int64_t piece_bytes = 0;
  // The largest EP group in which every pair connects at the start, before it is needed; 0..4096. A
  // pair on one node costs NCCL 12 MiB of the device a channel, and a round here about a
  // millisecond.
  int32_t warm_up_ranks = 64;
};

// The ranks of a communicator.
struct NcclRanks {
  int32_t num_ranks = 1;
  bool on_one_node = false;
};

// boot_ids: of all ranks, as BootId gives them. Ranks without one are on different nodes.
NcclRanks NcclRanksOf(std::span<const RankId> ep_group, std::span<const std::string> boot_ids);

// Over how many channels NCCL spreads a send or receive of `bytes`, where GPUs of one node have
// NVLink between them all. A channel moves 20 to 25 GB/s. source: NCCL 2.28.9, src/enqueue.cc
// (addP2pToPlan) and src/graph/paths.cc (ncclTopoComputeP2pChannels); 2.30.7 has the same rule.
int32_t NcclChannels(int64_t bytes, const NcclRanks& ranks, const NcclSettings& settings);

// `settings` with a piece_bytes where they leave it open: 16 MiB, and on one node as much as 8
// channels take, if max_ctas allows 8.
NcclSettings WithPieceBytes(NcclSettings settings, const NcclRanks& ranks);

// errors: InvalidArgument beginning with the field at fault.
absl::Status CheckNcclSettings(const NcclSettings& settings);

// `settings` with EPLB_NCCL_TRAFFIC_CLASS where their traffic_class is -1. errors: InvalidArgument
// for a variable that is no number from 0 on.
absl::StatusOr<NcclSettings> WithNcclEnvironment(NcclSettings settings);

using NamedTexts = std::vector<std::pair<std::string, std::string>>;
// The settings by their names; -1 is "default".
NamedTexts TellNcclSettings(const NcclSettings& settings);
// Of the variables that change how fast or on which way NCCL moves rows, those that are set, by
// name. What a nccl.conf file says is not seen.
NamedTexts TellNcclEnvironment();

// errors: FailedPrecondition for a variable with which NCCL's calls would wait without an end.
absl::Status CheckNcclEnvironment();

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_PATHS_NCCL_SETTINGS_H_
