// Why an address cannot be listened on: gRPC itself does not say.
#ifndef EPLB_SERVER_RPC_LISTEN_CHECK_H_
#define EPLB_SERVER_RPC_LISTEN_CHECK_H_

#include <string>

#include "server/address.h"

namespace eplb {

// The system's reason, found by trying. For an address that gRPC could not bind.
std::string WhyNotListening(const Address& address);

// True when a process accepts connections on this Unix socket. gRPC would take the path away from
// it without a word.
bool IsServed(const std::string& unix_path);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_LISTEN_CHECK_H_
