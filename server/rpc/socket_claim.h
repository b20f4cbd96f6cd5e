// The right to the path of a Unix socket, so that one daemon does not take it from another.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/store/file_lock.h"

namespace eplb {

// Returns OK if gRPC may bind `path`: nothing is there, or a socket on which no process accepts
// connections, which gRPC replaces. errors: Unavailable with what is there.
absl::Status CheckSocketPath(const std::string& path);

// Takes the right to a socket's path until the process ends: `path`.lock. Without it two daemons
// that start at the same moment both find the path free, and the second takes it from the first.
// errors: Unavailable when another daemon holds it, the folder takes no file, the path is longer
// than the 107 bytes of sockaddr_un, or as CheckSocketPath.
absl::StatusOr<FileLock> ClaimSocket(const std::string& path);

}  // namespace eplb
