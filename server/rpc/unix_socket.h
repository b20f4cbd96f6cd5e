// The Unix socket that eplbd opens beside its address, for eplbctl and ranks on the same machine.
#ifndef EPLB_SERVER_RPC_UNIX_SOCKET_H_
#define EPLB_SERVER_RPC_UNIX_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/store/file_lock.h"

namespace eplb {

// OK when gRPC may bind `path`: nothing is there, or a socket that no process serves, which gRPC
// replaces. errors: Unavailable, saying what is there.
absl::Status CheckSocketPath(const std::string& path);

// The right to a socket's path, held until the process ends: `path`.lock. Without it two daemons
// that start at the same moment both find the path free, and the second takes it from the first.
// errors: Unavailable when another daemon holds it, the folder takes no file, the path is longer
// than the 107 bytes of sockaddr_un, or as CheckSocketPath.
absl::StatusOr<FileLock> ClaimSocket(const std::string& path);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_UNIX_SOCKET_H_
