#include "proto/wire/endpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"

namespace eplb::wire {
namespace {

constexpr size_t kMaxShownEndpoint = 200;  // bytes
constexpr absl::string_view kUnix = "unix:";
constexpr size_t kMaxUnixPath = 107;  // capacity of sockaddr_un, less the terminating zero
constexpr std::array kCauses = {EACCES, ECONNREFUSED, ECONNRESET,   EHOSTUNREACH, ENETUNREACH,
                                ENOENT, ENOTDIR,      ENAMETOOLONG, ETIMEDOUT};

}  // namespace

absl::StatusOr<std::string> CheckEndpoint(const std::string& endpoint) {
  if (endpoint.find(',') != std::string::npos) {
    return InvalidInput("endpoint is \"", Clipped(endpoint, kMaxShownEndpoint),
                        "\", a list, expected one of it");
  }
  if (absl::StartsWith(endpoint, "/")) return CheckEndpoint(absl::StrCat("unix:", endpoint));
  if (absl::StartsWith(endpoint, kUnix) && endpoint.size() > kUnix.size()) {
    const size_t length = endpoint.size() - kUnix.size();
    if (length <= kMaxUnixPath) return endpoint;
    return InvalidInput("endpoint is \"", Clipped(endpoint, kMaxShownEndpoint), "\", a path of ",
                        length, " bytes, expected at most the ", kMaxUnixPath, " of a Unix socket");
  }
  const size_t colon = endpoint.rfind(':');
  uint32_t port = 0;
  const bool has_port = colon != std::string::npos && colon > 0 &&
                        absl::SimpleAtoi(endpoint.substr(colon + 1), &port) && port >= 1 &&
                        port <= 65535;
  // A second colon is an IPv6 address, which needs brackets.
  const bool plain_host = has_port && (endpoint.find(':') == colon || endpoint[colon - 1] == ']');
  if (plain_host && endpoint.find_first_of(" /\t\n") == std::string::npos) return endpoint;
  return InvalidInput("endpoint is \"", Clipped(endpoint, kMaxShownEndpoint),
                      "\", expected HOST:PORT or unix:PATH");
}

absl::StatusOr<std::vector<std::string>> SplitEndpoints(const std::string& list) {
  std::vector<std::string> endpoints;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    EPLB_ASSIGN_OR_RETURN(std::string endpoint,
                          CheckEndpoint(std::string(absl::StripAsciiWhitespace(part))));
    if (std::ranges::find(endpoints, endpoint) != endpoints.end()) {
      return InvalidInput("endpoint is \"", Clipped(list, kMaxShownEndpoint), "\": ", endpoint,
                          " is in it twice");
    }
    endpoints.push_back(std::move(endpoint));
  }
  if (endpoints.size() <= kMaxEndpoints) return endpoints;
  return InvalidInput("endpoint is a list of ", endpoints.size(), " daemons, expected at most ",
                      kMaxEndpoints);
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
