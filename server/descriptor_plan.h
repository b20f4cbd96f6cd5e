// How many file descriptors the daemon may have, and what they are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace eplb {

// Raises the process's limit of open files to the highest that the process may choose. The usual
// limit of 1024 is for programs that call select, which eplbd does not. Returns the limit.
int64_t RaiseDescriptorLimit();
// Returns the current limit.
int64_t DescriptorLimit();

// Each stream of a rank has a connection, so a descriptor, of its own. The rest belongs to the
// store, the log, HTTP and connections of queries.
struct DescriptorPlan {
  int32_t max_sessions = 0;      // at least 1
  int32_t tcp_below = 0;         // see ConnectionAcceptor::Options::descriptors_below
  int32_t unix_below = 0;        // higher: operators can connect when ranks take all of tcp_below
  size_t http_connections = 0;   // see HttpServer::Start
  std::string no_more_sessions;  // reason for max_sessions, for refusals
  std::string warning;           // one sentence if `wanted` sessions do not fit, otherwise empty
};
// limit: of open files. wanted: limits.max_sessions.
DescriptorPlan PlanDescriptors(int64_t limit, int32_t wanted);

}  // namespace eplb
