// A transport between ranks that are connected: the protocol of a post, over any path for the
// bytes.
#ifndef EPLB_CLIENT_MIGRATION_LINK_TRANSPORT_H_
#define EPLB_CLIENT_MIGRATION_LINK_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/migration/link_setup.h"
#include "client/migration/row_path.h"
#include "client/migration/transport.h"

namespace eplb {

// Not for a forked child: there every call fails and the destructor disturbs nobody.
std::unique_ptr<Transport> MakeLinkTransport(RankId rank, int64_t max_row_bytes,
                                             std::vector<PeerLink> links,
                                             std::unique_ptr<RowPath> path);

// Posts nothing as post 0, on all ranks together, so that what the path shares with the other ranks
// is there before a step waits for it. errors: as Post and Poll.
absl::Status BringUp(Transport& transport, absl::Time deadline);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_LINK_TRANSPORT_H_
