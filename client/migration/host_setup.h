// Brings the ranks of the host transport together: addresses, proved connections, shared memory.
#ifndef EPLB_CLIENT_MIGRATION_HOST_SETUP_H_
#define EPLB_CLIENT_MIGRATION_HOST_SETUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/control/exchange.h"
#include "client/migration/peer_link.h"
#include "client/migration/staging_arena.h"
#include "client/migration/transport.h"

namespace eplb {

// What every rank tells all others, as five lines of text.
struct HostAddress {
  std::string tcp;        // "10.0.0.1:4711"
  std::string unix_name;  // "@eplb-rows-...", empty without shared memory
  std::string boot_id;    // empty when unknown
  int64_t staging_bytes = 0;

  std::string Encode() const;
  // errors: InvalidArgument.
  static absl::StatusOr<HostAddress> Decode(const std::string& text);
};

struct HostParts {
  StagingArena arena;
  std::vector<PeerLink> links;  // one per peer, rising by rank
};

// errors: as MakeHostTransport.
absl::StatusOr<HostParts> SetUpHost(const HostTransportOptions& options, const Exchange& exchange);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_HOST_SETUP_H_
