// How much one address may ask for: open sessions, and calls per second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "server/runner/rate_limit.h"

namespace eplb {

// threads: safe. Memory: at most kMaxHosts addresses.
class PeerLimits {
 public:
  static constexpr size_t kMaxHosts = 16384;
  struct Options {
    int32_t max_sessions = 4096;       // limits.max_sessions_per_peer
    int32_t calls_per_second = 10000;  // limits.calls_per_second
  };
  explicit PeerLimits(Options options) : options_(options) {}

  // Takes one call of the rate. errors: ResourceExhausted with the limit. now must not go back.
  absl::Status TakeCall(const std::string& host, absl::Time now);
  // Counts a session. The caller calls CloseSession once for each OK. errors: as TakeCall.
  absl::Status OpenSession(const std::string& host, absl::Time now);
  void CloseSession(const std::string& host);

 private:
  struct Host {
    RateLimit calls;
    absl::Time last_seen;
    int32_t sessions = 0;
  };
  // Returns null if the table is full of addresses that are at work.
  Host* Find(const std::string& host, absl::Time now);

  const Options options_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, Host> hosts_;
};

inline constexpr std::string_view kUnixHost = "unix";
// Returns "ipv4:10.0.0.1" for "ipv4:10.0.0.1:4711", "ipv6:[::1]" for "ipv6:[::1]:4711", and "unix"
// for any Unix socket.
std::string HostOf(const std::string& peer);
// Returns true if only a process of this machine can have that host.
bool IsThisMachine(const std::string& host);

}  // namespace eplb
