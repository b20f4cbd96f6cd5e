// A transport between ranks that are connected: the protocol of a post, over any path for the
// bytes.
#ifndef EPLB_CLIENT_MIGRATION_LINK_TRANSPORT_H_
#define EPLB_CLIENT_MIGRATION_LINK_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/migration/peer_link.h"
#include "client/migration/row_path.h"
#include "client/migration/transport.h"

namespace eplb {

// Not for a forked child: there every call fails and the destructor disturbs nobody.
std::unique_ptr<Transport> MakeLinkTransport(RankId rank, int64_t max_row_bytes,
                                             std::vector<PeerLink> links,
                                             std::unique_ptr<RowPath> path);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_LINK_TRANSPORT_H_
