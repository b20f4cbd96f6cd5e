// The connections of a rank to all its peers.
#ifndef EPLB_CLIENT_MIGRATION_LINK_SET_H_
#define EPLB_CLIENT_MIGRATION_LINK_SET_H_

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/migration/peer_link.h"
#include "client/migration/row_frame.h"
#include "placement/ids.h"

namespace eplb {

// Threads: one caller. Nothing here waits, but for Wait.
class LinkSet {
 public:
  explicit LinkSet(std::vector<PeerLink> links);

  std::span<PeerLink> all() { return links_; }
  // Null for a rank that is no peer.
  PeerLink* Find(RankId peer);
  // REQUIRES: it is a peer.
  PeerLink& Of(RankId peer) { return *Find(peer); }

  // Sends a frame without payload to those of `peers` that are there.
  void Tell(std::span<const RankId> peers, const RowFrame& frame);
  void TellAll(const RowFrame& frame);
  // "ranks 2, 3 are gone (connection closed)"; empty when all are there.
  std::string DescribeGone(std::span<const RankId> among);
  // Until something can be read, or written where that is wanted, or `until`. errors: Internal.
  absl::Status Wait(absl::Time until) const;
  // Lets what was sent arrive, also where a forked child holds descriptors.
  void HangUp();

 private:
  std::vector<PeerLink> links_;
  std::map<RankId, size_t> index_;  // into links_
};

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_LINK_SET_H_
