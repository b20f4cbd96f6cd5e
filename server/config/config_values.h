// Ranges of values that the daemon's configuration alone has, in the form of base/value_range.h.
// The scalar of each is a text.
//
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/value_range.h"

namespace eplb {

// Bandwidths that ParseBandwidth reads; a number alone is GB/s.
struct BandwidthRange {
  std::optional<Scalar> Read(const WrittenValue& written) const;
  std::string Expected() const;
};

// Addresses that ParseAddress reads.
struct AddressRange {
  bool unix_allowed = false;

  std::optional<Scalar> Read(const WrittenValue& written) const;
  std::string Expected() const;
};

// kAutoSocket, kNoSocket or a path; "unix:PATH" as well, because addresses are written so.
struct SocketPathRange {
  std::optional<Scalar> Read(const WrittenValue& written) const;
  std::string Expected() const;
};

// "http://a:2379, b:2379": members of etcd as HOST:PORT. errors: InvalidArgument naming the part
// that is none, or when some are https and others are not.
struct EtcdEndpoints {
  std::vector<std::string> members;
  bool https = false;
};
absl::StatusOr<EtcdEndpoints> ParseEtcdEndpoints(const std::string& list);

// A list of members of etcd, an array or one text with commas, which the scalar is.
struct EtcdEndpointsRange {
  static std::optional<Scalar> Read(const WrittenValue& written);
  static std::string Expected() {
    return "members of etcd, such as \"http://etcd-0:2379,http://etcd-1:2379\"; https for all or "
           "none";
  }
};

// Any text but the empty one.
struct PathRange {
  std::string_view expected;

  std::optional<Scalar> Read(const WrittenValue& written) const;
  std::string Expected() const { return std::string(expected); }
};

// An array, or one text with commas between the names, which the scalar is. A name has letters,
// digits and . - _, and no port.
struct HostNameRange {
  size_t most = 0;

  std::optional<Scalar> Read(const WrittenValue& written) const;
  std::string Expected() const;
};

// true or false: a boolean of TOML, or the word of a variable or a flag.
struct BooleanRange {
  static std::optional<Scalar> Read(const WrittenValue& written);
  static std::string Expected() { return "true or false"; }
};

// A table that the configuration file alone has, and its reader alone reads.
struct FileTable {
  static std::optional<Scalar> Read(const WrittenValue& /*written*/) { return std::nullopt; }
  static std::string Expected() { return "a table of rules in the configuration file"; }
};

}  // namespace eplb
