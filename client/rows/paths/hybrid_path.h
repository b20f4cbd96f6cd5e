// Rows of an EP group whose ranks share hosts, but not one: by the peer path inside a host, by NCCL
// between hosts. NVLink then carries its rows at its full speed, and NCCL's few channels are left
// to the network.
//
// Each path gets the rows of its own ranks and a ledger of them alone, so neither sees the other's.
// No circle can form between the two:
// - The peer path waits for a receiver to post and for its own device. What it puts there waits for
//   no other rank, and a row that was written needs no answer.
// - The NCCL path waits for groups of a lower (round, k), as nccl_groups.h says. Which rows it has
//   depends on the pair of ranks alone, so both ends of a transfer cut the same groups. A rank
//   without such rows in a round has no group there, and no other rank waits for one.
// - Rounds gate each path by its own rows: a round of one path never waits for a row of the other.
//   So a rank still has at most one send and one receive in an NCCL group.
// - On the device the two work on different streams and on different rows. Where streams share one
//   hardware queue, or a copy has the multiprocessors, one path stands behind what the other began
//   before: a copy, which ends by itself, or groups, which wait as above.
#pragma once

#include <memory>
#include <set>

#include "client/rows/row_path.h"
#include "placement/ids.h"

namespace eplb {

// The name of the transport.
inline constexpr char kHybridName[] = "peer+nccl";

struct HybridPathParts {
  std::unique_ptr<RowPath> peer;
  std::unique_ptr<RowPath> nccl;  // into the staging of `peer`; frames about no row are its
  // The ranks of this host, whose rows `peer` carries. Symmetric: a has b if b has a.
  std::set<RankId> same_host;
};

// An error of one path is an error of the post. Both are always closed.
std::unique_ptr<RowPath> MakeHybridPath(HybridPathParts parts);

}  // namespace eplb
