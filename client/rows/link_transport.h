// A transport between connected ranks: the protocol of a post, over any path for the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/rows/peer_links.h"
#include "client/rows/row_path.h"
#include "client/rows/transport.h"
#include "placement/ids.h"

namespace eplb {

// In a forked child every call fails, and the destructor affects no other rank.
std::unique_ptr<Transport> MakeLinkTransport(RankId rank, int64_t max_row_bytes,
                                             std::vector<PeerLink> links,
                                             std::unique_ptr<RowPath> path);

}  // namespace eplb
