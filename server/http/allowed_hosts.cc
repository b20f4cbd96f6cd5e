// Compares a Host header with addresses and known names.
#include "server/http/allowed_hosts.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"

namespace eplb {

namespace {

constexpr size_t kMaxPortDigits = 5;

bool IsPort(std::string_view text) {
  return text.size() <= kMaxPortDigits &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool IsAddress(int family, std::string_view text) {
  in6_addr address{};  // the larger of the two
  // The C function would not see the bytes after a zero.
  return text.find('\0') == std::string_view::npos &&
         inet_pton(family, std::string(text).c_str(), &address) == 1;
}

}  // namespace

AllowedHosts::AllowedHosts(std::vector<std::string> names) : names_(std::move(names)) {
  names_.emplace_back("localhost");
}

bool AllowedHosts::Allows(std::string_view host) const {
  // The colons of an IPv6 address are inside its brackets.
  const size_t bracket = host.rfind(']');
  const size_t colon = host.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    if (!IsPort(host.substr(colon + 1))) return false;
    host = host.substr(0, colon);
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return IsAddress(AF_INET6, host.substr(1, host.size() - 2));
  }
  return IsAddress(AF_INET, host) || std::ranges::any_of(names_, [host](const std::string& name) {
           return absl::EqualsIgnoreCase(name, absl::string_view(host.data(), host.size()));
         });
}

}  // namespace eplb
