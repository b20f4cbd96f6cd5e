// Connects the ranks of a transport: addresses, proved connections, and a descriptor of each rank's
// staging for the peers on its host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/rows/control/control_channel.h"
#include "client/rows/peer_links.h"
#include "client/rows/transport.h"
#include "placement/ids.h"

namespace eplb {

// Address that every rank sends to all others, as six lines of text.
struct LinkAddress {
  std::string tcp;        // "10.0.0.1:4711"
  std::string unix_name;  // "@eplb-rows-...", empty without one
  std::string boot_id;    // empty when unknown
  int64_t staging_bytes = 0;
  std::string staging_text;  // SharedStaging::text

  std::string Encode() const;
  // errors: InvalidArgument.
  static absl::StatusOr<LinkAddress> Decode(const std::string& text);
};

// Access to a rank's staging for peers that write into it; empty if they cannot.
struct SharedStaging {
  int descriptor = -1;  // handed over unix sockets, if the pair has one
  std::string text;     // one line, to all ranks
};

struct LinkParts {
  struct Peer {
    PeerLink link;
    std::string staging_text;
    // Descriptor of a peer on this host that shares its staging; otherwise why there is none.
    absl::StatusOr<Fd> descriptor;
  };
  std::vector<Peer> peers;  // rising by rank
};

// Calls `all_gather` once in every case, so that the ranks' next all-gathers match. own: an error
// if this rank could not make its staging; this rank returns it, and the others fail with it and
// this rank's number. errors: see MakeHostTransport.
absl::StatusOr<LinkParts> SetUpLinks(const TransportOptions& options,
                                     const absl::StatusOr<SharedStaging>& own,
                                     const AllGather& all_gather);

// Peers that the preferred path does not reach, reported once per reason.
class LinkNotes {
 public:
  void Add(RankId rank, std::string_view why);
  // Notes "rows to ranks 1, 2 HOW: WHY", e.g. "go over the socket: another host".
  void Tell(const TransportOptions& options, std::string_view how) const;

 private:
  std::map<std::string, std::vector<RankId>> ranks_;  // key: reason
};

}  // namespace eplb
