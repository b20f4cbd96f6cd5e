#include "client/cli/daemon/connection_error.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace eplb::cli {
namespace {

constexpr std::array kCauses = {EACCES, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH,
                                ENOENT, ENOTDIR,      EPERM,      ENAMETOOLONG, ETIMEDOUT};

// The error of connect() that gRPC's text ends with; 0 for none of these.
int CauseIn(const std::string& message) {
  for (const int cause : kCauses) {
    if (absl::StrContains(message, std::strerror(cause))) return cause;
  }
  return 0;
}

// What stands after gRPC's "failed to connect to all addresses; last error: UNKNOWN: ".
std::string WithoutPreamble(const std::string& message) {
  constexpr char kLastError[] = "last error: ";
  const size_t at = message.rfind(kLastError);
  return at == std::string::npos ? message : message.substr(at + sizeof(kLastError) - 1);
}

}  // namespace

absl::Status ConnectionError(const std::string& endpoint, const std::string& message,
                             bool plaintext) {
  const std::string cannot = absl::StrCat("cannot reach ", endpoint, ": ");
  if (absl::StrContains(message, "http1.x")) {
    return absl::UnavailableError(absl::StrCat(
        cannot,
        "an HTTP/1 server answers; is that eplbd's --http address? eplbctl needs its gRPC "
        "address, by default port 29610"));
  }
  const int cause = CauseIn(message);
  if (cause == EACCES || cause == EPERM) {
    return absl::PermissionDeniedError(cannot + "this user may not open the socket");
  }
  if (cause != 0) {
    std::string words = std::strerror(cause);
    words[0] = absl::ascii_tolower(static_cast<unsigned char>(words[0]));
    return absl::UnavailableError(cannot + words);
  }
  // All that gRPC says of a daemon that wants TLS is that it hung up.
  const bool perhaps_tls = plaintext && absl::EndsWith(message, "closed");
  return absl::UnavailableError(absl::StrCat(
      cannot, WithoutPreamble(message),
      perhaps_tls ? "; does it want TLS? see --tls-ca, --tls-cert and --tls-key" : ""));
}

}  // namespace eplb::cli
