// Addresses of daemons: their forms, and why one was not reached. The CLI and the client share the
// messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb::wire {

// Returns an address for gRPC: "HOST:PORT" with a port [1, 65535], "[IPV6]:PORT", "unix:PATH";
// "/PATH" becomes "unix:/PATH". errors: InvalidArgument beginning with "endpoint is".
absl::StatusOr<std::string> CheckEndpoint(const std::string& endpoint);

// One endpoint or several, "A,B", each as CheckEndpoint takes it; blanks around them do not count.
// A path with a comma cannot be given. errors: InvalidArgument as CheckEndpoint, and for one that
// stands twice or more than kMaxEndpoints.
inline constexpr size_t kMaxEndpoints = 8;
absl::StatusOr<std::vector<std::string>> SplitEndpoints(const std::string& list);

// The cause in what gRPC says of a connection that did not come about, in the words of the system:
// "connection refused"; empty when the system's words are not there.
std::string SystemCause(std::string_view message);
// The same, else gRPC's own words after its preamble.
std::string ConnectionCause(std::string_view message);

}  // namespace eplb::wire
