// A rank's options and what it agreed with the other ranks before its client exists. Constant from
// then on.
#pragma once

#include <string>
#include <vector>

#include "client/client.h"
#include "client/registered_tensors.h"
#include "client/rows/control/control_channel.h"
#include "client/rows/executor.h"
#include "client/rows/paths/transport_choice.h"
#include "client/start.h"
#include "placement/rank_grid.h"
#include "proto/wire/messages.h"

namespace eplb {

struct RankSetup {
  ClientOptions options;
  Topology topology;
  RankGrid grid;
  AllGather all_gather;
  bool disabled = false;    // by EPLB_DISABLE, on all ranks
  NcclSettings nccl = {};   // options.nccl with the environment's settings
  std::string run_id = {};  // unique
  std::string secret = {};  // secret of the channels between ranks, 64 hexadecimal characters

  RankId rank() const { return RankId{options.rank}; }
  GpuId gpu() const { return grid.GpuOf(rank()); }
  std::vector<RankId> EpGroup() const { return grid.RanksOf(grid.EpGroupOf(rank())); }
  // Returns true if this rank reports its counts to the daemon.
  bool Reports() const {
    return options.reduce == "root" ? options.rank == 0 : grid.CountsTokens(rank());
  }

  // Collective. As RunStartRound.
  absl::StatusOr<std::vector<StartFields>> Exchange(const StartRound& round) const {
    return RunStartRound(round, options.rank, options.world_size, all_gather);
  }
  ExecutorOptions MakeExecutorOptions() const;
  RowMoverOptions MakeRowMoverOptions(const JobNeeds& needs) const;
  // Returns the identity of this rank with a fresh nonce.
  wire::Hello MakeHello(const JobNeeds& needs, const TransportReport& transport) const;
};

}  // namespace eplb
