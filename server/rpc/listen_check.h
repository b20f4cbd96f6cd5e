// Whether a Unix socket is another daemon's: of use to both that take one over, gRPC and the
// acceptor.
#ifndef EPLB_SERVER_RPC_LISTEN_CHECK_H_
#define EPLB_SERVER_RPC_LISTEN_CHECK_H_

#include <string>

namespace eplb {

// True when a process accepts connections on this Unix socket. gRPC would take the path away from
// it without a word.
bool IsServed(const std::string& unix_path);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_LISTEN_CHECK_H_
