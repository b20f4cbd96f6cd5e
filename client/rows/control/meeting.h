// Connects ranks: dials some, waits for others, and admits only those that prove the secret.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/handshake.h"
#include "client/rows/control/socket.h"
#include "placement/ids.h"

namespace eplb {

struct MeetOptions {
  Handshake::Options handshake;
  struct Dial {
    RankId rank;
    std::vector<std::string> addresses;  // tried in turn, again and again until the deadline
  };
  std::vector<Dial> dial = {};
  std::vector<RankId> expect = {};              // ranks that dial this one
  std::vector<const Listener*> listeners = {};  // addresses that they dial
  absl::Time deadline;
};

struct MetPeer {
  Fd fd;
  std::string address;          // address that was dialled, or on which the peer arrived
  std::string first_miss = {};  // error of the first address; empty if it was used
};

struct Meeting {
  std::map<RankId, MetPeer> peers;
  int64_t strangers = 0;  // connections to this rank that were dropped
};

// Connects with all peers in one poll loop, so that no stranger and no silent connection delays the
// others. At most expect.size() + 64 unproved connections are kept; the oldest is dropped first.
// Collective among the ranks named. errors: DeadlineExceeded naming the missing ranks, `what`
// first; errors of socket.h.
absl::StatusOr<Meeting> MeetPeers(std::string_view what, const MeetOptions& options);

// errors: InvalidArgument, `what` first, for a rank outside 0..world_size - 1.
absl::Status CheckRank(std::string_view what, RankId rank, int32_t world_size);

// Returns "rank 3", "ranks 1, 2, 5"; at most 16 are named.
std::string NameRanks(std::vector<RankId> ranks);

}  // namespace eplb
