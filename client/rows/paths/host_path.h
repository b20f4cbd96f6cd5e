// Rows in host memory. A piece is copied into the receiver's mapped arena and announced (kLanded),
// or it is sent on the connection (kPiece). The receiver reads such a piece into its own staging,
// at the place in its own list.
#pragma once

#include <map>
#include <vector>

#include "client/rows/link_setup.h"
#include "client/rows/staging_arena.h"
#include "client/rows/transport.h"
#include "placement/ids.h"

namespace eplb {

// The connections to peers, and the arenas of those that share theirs.
struct HostPeers {
  std::vector<PeerLink> links;
  std::map<RankId, StagingArena> mapped;
};
// Maps what was handed over. Why rows to a peer go over the socket all the same is told by
// options.on_note.
HostPeers MapPeers(LinkParts parts, const TransportOptions& options);

}  // namespace eplb
