// An address at which eplbd listens: "127.0.0.1:29610", "[::1]:29610", "localhost:0" or
// "unix:/run/eplb/eplbd.sock".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eplb {

struct Address {
  std::string host = {};       // without brackets; empty for a Unix socket
  int32_t port = 0;            // 0 = any free one
  std::string unix_path = {};  // empty for TCP

  bool is_unix() const { return !unix_path.empty(); }
  // True when only processes of this machine can reach it.
  bool IsLoopback() const;
  // Returns the address as it was given, with IPv6 hosts in brackets.
  std::string Text() const;
  Address WithPort(int32_t real_port) const;
};

// errors: InvalidArgument with what is expected: no port, a port above 65535, an empty host or
// path, a Unix path longer than the 107 bytes of sockaddr_un.
absl::StatusOr<Address> ParseAddress(std::string_view text);

}  // namespace eplb
