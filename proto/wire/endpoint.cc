#include "proto/wire/endpoint.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace eplb::wire {
namespace {

constexpr std::array kCauses = {EACCES, ECONNREFUSED, ECONNRESET,   EHOSTUNREACH, ENETUNREACH,
                                ENOENT, ENOTDIR,      ENAMETOOLONG, ETIMEDOUT};

}  // namespace

absl::StatusOr<std::string> CheckEndpoint(const std::string& endpoint) {
  if (absl::StartsWith(endpoint, "/")) return absl::StrCat("unix:", endpoint);
  if (absl::StartsWith(endpoint, "unix:") && endpoint.size() > 5) return endpoint;
  const size_t colon = endpoint.rfind(':');
  uint32_t port = 0;
  const bool has_port = colon != std::string::npos && colon > 0 &&
                        absl::SimpleAtoi(endpoint.substr(colon + 1), &port) && port >= 1 &&
                        port <= 65535;
  // A second colon is an IPv6 address, which needs brackets.
  const bool plain_host = has_port && (endpoint.find(':') == colon || endpoint[colon - 1] == ']');
  if (plain_host && endpoint.find_first_of(" /\t\n") == std::string::npos) return endpoint;
  return absl::InvalidArgumentError(absl::StrCat("endpoint is \"", endpoint.substr(0, 200),
                                                 "\", expected HOST:PORT or unix:PATH"));
}

std::string SystemCause(std::string_view message) {
  const std::string text(message);
  for (const int cause : kCauses) {
    std::string words = std::strerror(cause);  // NOLINT(concurrency-mt-unsafe): of known numbers
    if (!absl::StrContains(text, words)) continue;
    words[0] = absl::ascii_tolower(static_cast<unsigned char>(words[0]));
    return words;
  }
  return {};
}

std::string ConnectionCause(std::string_view message) {
  std::string cause = SystemCause(message);
  if (!cause.empty()) return cause;
  constexpr std::string_view kLastError = "last error: ";
  const size_t at = message.rfind(kLastError);
  return std::string(at == std::string_view::npos ? message
                                                  : message.substr(at + kLastError.size()));
}

}  // namespace eplb::wire
