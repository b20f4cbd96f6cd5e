// How many file descriptors the daemon may have, and what they are for.
#ifndef EPLB_SERVER_DESCRIPTOR_PLAN_H_
#define EPLB_SERVER_DESCRIPTOR_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace eplb {

// Sets the process's limit of open files to the highest that it may choose itself. The usual limit
// of 1024 is for programs that call select, which this one does not.
// Returns the limit in force.
int64_t RaiseDescriptorLimit();
// The limit in force.
int64_t DescriptorLimit();

// Each stream of a rank has a connection, so a descriptor, of its own; what is left belongs to the
// store, the log, HTTP and connections of queries.
struct DescriptorPlan {
  int32_t max_sessions = 0;      // at least 1
  int32_t tcp_below = 0;         // see ConnectionAcceptor::Options::descriptors_below
  int32_t unix_below = 0;        // higher: the operators' way in when ranks take all of the other
  size_t http_connections = 0;   // see HttpServer::Start
  std::string no_more_sessions;  // why there are no more than max_sessions
  std::string warning;           // one sentence when `wanted` sessions do not fit, else empty
};
// limit: of open files. wanted: limits.max_sessions.
DescriptorPlan PlanDescriptors(int64_t limit, int32_t wanted);

}  // namespace eplb

#endif  // EPLB_SERVER_DESCRIPTOR_PLAN_H_
