// Brings ranks together: dials some, waits for others, lets only those in that prove the secret.
#ifndef EPLB_CLIENT_CONTROL_MEETING_H_
#define EPLB_CLIENT_CONTROL_MEETING_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/control/handshake.h"
#include "client/control/socket.h"
#include "placement/ids.h"

namespace eplb {

struct MeetOptions {
  Handshake::Options handshake;
  struct Dial {
    RankId rank;
    std::vector<std::string> addresses;  // tried in turn, again and again until the deadline
  };
  std::vector<Dial> dial;
  std::vector<RankId> expect;              // ranks that dial us
  std::vector<const Listener*> listeners;  // where they do
  absl::Time deadline;
  absl::Duration handshake_timeout = absl::Seconds(5);  // of one connection that has not proved
                                                        // itself
};

struct MetPeer {
  Fd fd;
  std::string address;     // dialled, or of the listener the peer came to
  std::string first_miss;  // why the first address was not taken; empty when it was
};

struct Meeting {
  std::map<RankId, MetPeer> peers;
  int64_t strangers = 0;  // connections to us that were dropped
};

// One poll loop for all connections, so that neither a stranger nor a silent connection holds up
// the others; at most expect.size() + 64 unproved connections are kept, the oldest gives way.
// Collective among the ranks named. errors: DeadlineExceeded naming the ranks that did not come,
// `what` first; what socket.h reports.
absl::StatusOr<Meeting> MeetPeers(std::string_view what, const MeetOptions& options);

// "rank 3", "ranks 1, 2, 5"; at most 16 are written out.
std::string NameRanks(std::vector<RankId> ranks);

}  // namespace eplb

#endif  // EPLB_CLIENT_CONTROL_MEETING_H_
