// Reads the kinds of text of the configuration.
#include "server/config/config_values.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "placement/bandwidth.h"
#include "proto/wire/endpoint.h"
#include "server/config/config.h"
#include "server/process/address.h"

namespace eplb {
namespace {

using Kind = WrittenValue::Kind;
using Canonical = std::optional<std::string>;

constexpr size_t kMaxHostNames = 64;
constexpr char kUnix[] = "unix:";

bool IsHostName(std::string_view name) {
  constexpr size_t kLongest = 253;  // longest name in DNS
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
  });
}

Canonical Bandwidth(const WrittenValue& written) {
  if (written.kind == Kind::kTexts || written.kind == Kind::kOther) return std::nullopt;
  const absl::StatusOr<double> bytes_per_s = ParseBandwidth(written.text);
  return bytes_per_s.ok() ? Canonical(BandwidthText(*bytes_per_s)) : std::nullopt;
}

Canonical AddressOrUnix(const WrittenValue& written) {
  if (!written.is_text()) return std::nullopt;
  const absl::StatusOr<Address> address = ParseAddress(written.text);
  return address.ok() ? Canonical(address->Text()) : std::nullopt;
}

Canonical NetworkAddress(const WrittenValue& written) {
  return written.text.starts_with(kUnix) ? std::nullopt : AddressOrUnix(written);
}

Canonical SocketPath(const WrittenValue& written) {
  if (!written.is_text() || written.text.empty()) return std::nullopt;
  if (written.text == kAutoSocket || written.text == kNoSocket) return written.text;
  const std::string prefix = written.text.starts_with(kUnix) ? "" : kUnix;
  const absl::StatusOr<Address> address = ParseAddress(prefix + written.text);
  return address.ok() ? Canonical(address->unix_path) : std::nullopt;
}

Canonical HostNames(const WrittenValue& written) {
  std::vector<std::string> names = written.texts;
  if (written.kind != Kind::kTexts) {
    if (!written.is_text()) return std::nullopt;
    names = absl::StrSplit(written.text, ',', absl::SkipEmpty());
  }
  if (names.size() > kMaxHostNames || !std::ranges::all_of(names, IsHostName)) return std::nullopt;
  return absl::StrJoin(names, ",");
}

Canonical Boolean(const WrittenValue& written) {
  const bool fits = written.kind == Kind::kOther || written.kind == Kind::kUntyped;
  if (!fits || (written.text != "true" && written.text != "false")) return std::nullopt;
  return written.text;
}

Canonical NoValue(const WrittenValue& /*written*/) { return std::nullopt; }

Canonical Members(const WrittenValue& written) {
  if (written.kind != Kind::kTexts && !written.is_text()) return std::nullopt;
  std::string list =
      written.kind == Kind::kTexts ? absl::StrJoin(written.texts, ",") : written.text;
  return ParseEtcdEndpoints(list).ok() ? Canonical(std::move(list)) : std::nullopt;
}

}  // namespace

absl::StatusOr<EtcdEndpoints> ParseEtcdEndpoints(const std::string& list) {
  EtcdEndpoints endpoints;
  size_t with_tls = 0;
  for (absl::string_view part : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    part = absl::StripAsciiWhitespace(part);
    const bool https = absl::ConsumePrefix(&part, "https://");
    if (!https) (void)absl::ConsumePrefix(&part, "http://");
    (void)absl::ConsumeSuffix(&part, "/");
    EPLB_ASSIGN_OR_RETURN(std::string member, wire::CheckEndpoint(std::string(part)));
    with_tls += https ? 1 : 0;
    endpoints.members.push_back(std::move(member));
  }
  if (endpoints.members.empty()) return absl::InvalidArgumentError("there is no member of etcd");
  if (with_tls != 0 && with_tls != endpoints.members.size()) {
    return absl::InvalidArgumentError("some members of etcd are https and others are not");
  }
  endpoints.https = with_tls != 0;
  return endpoints;
}

std::span<const wire::TextKind> ConfigTextKinds() {
  static const auto& kinds = *new std::vector<wire::TextKind>{
      {"address", {&NetworkAddress, "ADDR:PORT with a port in 0..65535"}},
      {"address or unix", {&AddressOrUnix, "ADDR:PORT with a port in 0..65535 or unix:PATH"}},
      {"bandwidth", {&Bandwidth, kBandwidthExpected}},
      {"boolean", {&Boolean, "true or false"}},
      {"etcd",
       {&Members,
        "members of etcd, such as \"http://etcd-0:2379,http://etcd-1:2379\"; https for all or "
        "none"}},
      {"hosts", {&HostNames, "at most 64 host names, an array or separated by commas"}},
      {"rules", {&NoValue, "a table of rules in the configuration file"}},
      {"socket", {&SocketPath, "\"auto\", \"none\" or the path of a socket"}}};
  return kinds;
}

}  // namespace eplb
