#include "client/cli/daemon/connection_error.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "proto/wire/endpoint.h"

namespace eplb::cli {

absl::Status ConnectionError(const std::string& endpoint, const std::string& message,
                             bool plaintext) {
  const std::string cannot = absl::StrCat("cannot reach ", endpoint, ": ");
  if (absl::StrContains(message, "http1.x")) {
    return absl::UnavailableError(absl::StrCat(
        cannot,
        "an HTTP/1 server answers; is that eplbd's --http address? eplbctl needs its gRPC "
        "address, by default port 29610"));
  }
  const std::string cause = wire::ConnectionCause(message);
  if (cause == "permission denied") {
    return absl::PermissionDeniedError(cannot + "this user may not open the socket");
  }
  // All that gRPC says of a daemon that wants TLS is that it hung up.
  const bool perhaps_tls = plaintext && absl::EndsWith(message, "closed");
  return absl::UnavailableError(absl::StrCat(
      cannot, cause,
      perhaps_tls ? "; does it want TLS? see --tls-ca, --tls-cert and --tls-key" : ""));
}

}  // namespace eplb::cli
