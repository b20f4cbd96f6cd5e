// Reads and writes an address.
#include "server/process/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {

namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr size_t kMaxUnixPath = 107;

absl::Status Unusable(std::string_view text, std::string_view why) {
  return InvalidInput("\"", std::string(text), "\": ", std::string(why),
                      ", expected ADDR:PORT or unix:PATH");
}

}  // namespace

bool Address::IsLoopback() const {
  if (is_unix() || host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::string Address::Text() const {
  if (is_unix()) return absl::StrCat("unix:", unix_path);
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

Address Address::WithPort(int32_t real_port) const {
  Address address = *this;
  address.port = real_port;
  return address;
}

absl::StatusOr<Address> ParseAddress(std::string_view text) {
  Address address;
  if (text.substr(0, kUnixPrefix.size()) == kUnixPrefix) {
    address.unix_path = std::string(text.substr(kUnixPrefix.size()));
    if (address.unix_path.empty()) return Unusable(text, "no path");
    if (address.unix_path.size() > kMaxUnixPath) {
      return Unusable(text, "a socket's path has at most 107 bytes");
    }
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Unusable(text, "no port");
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find(':') != std::string_view::npos) {
    return Unusable(text, "an IPv6 address must be in brackets");
  }
  if (host.empty()) return Unusable(text, "no address");
  const std::string port(text.substr(colon + 1));
  const bool digits = port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return Unusable(text, "the port is not in 0..65535");
  }
  address.host = std::string(host);
  return address;
}

}  // namespace eplb
