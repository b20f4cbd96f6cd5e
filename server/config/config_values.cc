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

bool IsHostName(std::string_view name) {
  constexpr size_t kLongest = 253;  // longest name in DNS
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
  });
}

}  // namespace

std::optional<Scalar> BandwidthRange::Read(const WrittenValue& written) const {
  if (written.kind == Kind::kTexts || written.kind == Kind::kOther) return std::nullopt;
  const absl::StatusOr<double> bytes_per_s = ParseBandwidth(written.text);
  if (!bytes_per_s.ok()) return std::nullopt;
  return BandwidthText(*bytes_per_s);
}

std::string BandwidthRange::Expected() const { return kBandwidthExpected; }

std::optional<Scalar> AddressRange::Read(const WrittenValue& written) const {
  if (!written.is_text()) return std::nullopt;
  const absl::StatusOr<Address> address = ParseAddress(written.text);
  if (!address.ok() || (address->is_unix() && !unix_allowed)) return std::nullopt;
  return written.text;
}

std::string AddressRange::Expected() const {
  constexpr char kAddress[] = "ADDR:PORT with a port in 0..65535";
  return absl::StrCat(kAddress, unix_allowed ? " or unix:PATH" : "");
}

std::optional<Scalar> SocketPathRange::Read(const WrittenValue& written) const {
  if (!written.is_text() || written.text.empty()) return std::nullopt;
  std::string path = written.text;
  if (path == kAutoSocket || path == kNoSocket) return path;
  if (path.rfind("unix:", 0) != 0) path.insert(0, "unix:");
  const absl::StatusOr<Address> address = ParseAddress(path);
  if (!address.ok()) return std::nullopt;
  return address->unix_path;
}

std::string SocketPathRange::Expected() const {
  return "\"auto\", \"none\" or the path of a socket";
}

std::optional<Scalar> PathRange::Read(const WrittenValue& written) const {
  if (!written.is_text() || written.text.empty()) return std::nullopt;
  return written.text;
}

std::optional<Scalar> HostNameRange::Read(const WrittenValue& written) const {
  std::vector<std::string> names = written.texts;
  if (written.kind != Kind::kTexts) {
    if (!written.is_text()) return std::nullopt;
    names = absl::StrSplit(written.text, ',', absl::SkipEmpty());
  }
  if (names.size() > most || !std::ranges::all_of(names, IsHostName)) return std::nullopt;
  return absl::StrJoin(names, ",");
}

std::string HostNameRange::Expected() const {
  return absl::StrCat("at most ", most, " host names, an array or separated by commas");
}

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

std::optional<Scalar> EtcdEndpointsRange::Read(const WrittenValue& written) {
  std::string list = written.text;
  if (written.kind == Kind::kTexts) {
    list = absl::StrJoin(written.texts, ",");
  } else if (!written.is_text()) {
    return std::nullopt;
  }
  if (!ParseEtcdEndpoints(list).ok()) return std::nullopt;
  return list;
}

std::optional<Scalar> BooleanRange::Read(const WrittenValue& written) {
  const bool fits = written.kind == Kind::kOther || written.kind == Kind::kUntyped;
  if (!fits || (written.text != "true" && written.text != "false")) return std::nullopt;
  return written.text;
}

}  // namespace eplb
