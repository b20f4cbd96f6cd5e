// Brings the ranks of a transport together: addresses, proved connections, and a descriptor of each
// rank's staging for the peers on its host.
#ifndef EPLB_CLIENT_MIGRATION_LINK_SETUP_H_
#define EPLB_CLIENT_MIGRATION_LINK_SETUP_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/control/exchange.h"
#include "client/control/socket.h"
#include "client/migration/peer_link.h"
#include "client/migration/transport.h"

namespace eplb {

// What every rank tells all others, as six lines of text.
struct LinkAddress {
  std::string tcp;        // "10.0.0.1:4711"
  std::string unix_name;  // "@eplb-rows-...", empty without one
  std::string boot_id;    // empty when unknown
  int64_t staging_bytes = 0;
  std::string staging_text;  // of SharedStaging

  std::string Encode() const;
  // errors: InvalidArgument.
  static absl::StatusOr<LinkAddress> Decode(const std::string& text);
};

// What a rank gives its peers so that they can write into its staging; nothing when they cannot.
struct SharedStaging {
  int descriptor = -1;  // handed over unix sockets, where there is one
  std::string text;     // one line, to all ranks
};

struct LinkParts {
  struct Peer {
    PeerLink link;
    std::string staging_text;
    // Of a peer on this host that shares its staging, else why there is none.
    absl::StatusOr<Fd> descriptor;
  };
  std::vector<Peer> peers;  // rising by rank
};

// Calls `exchange` once, whatever happens, so that the ranks' next exchanges stay side by side.
// own: an error when this rank could not make its staging: it is returned here, and the others fail
// with it by its name. errors: as MakeHostTransport.
absl::StatusOr<LinkParts> SetUpLinks(const TransportOptions& options,
                                     const absl::StatusOr<SharedStaging>& own,
                                     const Exchange& exchange);

// Which peers cannot be reached by the way one had hoped for, told once per reason.
class LinkNotes {
 public:
  void Add(RankId rank, std::string_view why);
  // "rows to ranks 1, 2 go over the socket: another host".
  void Tell(const TransportOptions& options, std::string_view how) const;

 private:
  std::map<std::string, std::vector<RankId>> ranks_;  // by reason
};

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_LINK_SETUP_H_
