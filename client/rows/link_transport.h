// A transport between ranks that are connected: the protocol of a post, over any path for the
// bytes.
#ifndef EPLB_CLIENT_ROWS_LINK_TRANSPORT_H_
#define EPLB_CLIENT_ROWS_LINK_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/rows/link_setup.h"
#include "client/rows/row_path.h"
#include "client/rows/transport.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"

namespace eplb {

// Not for a forked child: there every call fails and the destructor disturbs nobody.
std::unique_ptr<Transport> MakeLinkTransport(RankId rank, int64_t max_row_bytes,
                                             std::vector<PeerLink> links,
                                             std::unique_ptr<RowPath> path);

// Posts nothing as post 0, on all ranks together, so that what the path shares with the other ranks
// is there before a step waits for it. errors: as Post and Poll.
absl::Status BringUp(Transport& transport, absl::Time deadline);

struct TrialOptions {
  RankId self;
  std::vector<RankId> ranks;  // all of them, rising, with self
  absl::Time deadline;
};
// As BringUp, with a row of at most 64 KiB from every rank to every other one: whether bytes get
// there is not known before some have. queue: of the memory that rows lie in. errors: as BringUp;
// ResourceExhausted.
absl::Status TryPairs(Transport& transport, cuda::RowQueue& queue, const TrialOptions& options);

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_LINK_TRANSPORT_H_
