// Kinds of text that only keys of the daemon's configuration have, by their names in the option
// `setting` of v1.Configuration.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/wire/setting_field.h"

namespace eplb {

// "http://a:2379, http://b:2379": members of etcd as HOST:PORT. errors: InvalidArgument naming the
// part that is none, or when some are https and others are not.
struct EtcdEndpoints {
  std::vector<std::string> members;
  bool https = false;
};
absl::StatusOr<EtcdEndpoints> ParseEtcdEndpoints(const std::string& list);

// "address" and "address or unix" are read by ParseAddress, "bandwidth" by ParseBandwidth, where a
// number alone is GB/s. A "boolean" of TOML has no quotes. "etcd" and "hosts" are arrays, or one
// text with commas, which the scalar is. "rules" has no text: the reader of the file alone reads
// it. A "socket" is kAutoSocket, kNoSocket or a path, or "unix:PATH", because addresses are written
// so.
std::span<const wire::TextKind> ConfigTextKinds();

}  // namespace eplb
