// A table of addresses, each with its rate of calls and its open sessions.
#include "server/rpc/peer_limits.h"

#include "base/errors.h"
#include "server/rpc/unix_acceptor.h"

namespace eplb {

namespace {

// A bucket is full again 2 s after its last call; an address is forgotten then.
constexpr absl::Duration kForget = absl::Seconds(2);

absl::Status TooManyHosts() {
  return ResourceExhausted("calls from ", PeerLimits::kMaxHosts, " addresses, retry later");
}

}  // namespace

PeerLimits::Host* PeerLimits::Find(const std::string& host, absl::Time now) {
  const auto found = hosts_.find(host);
  if (found != hosts_.end()) return &found->second;
  if (hosts_.size() >= kMaxHosts) {
    std::erase_if(hosts_, [now](const auto& entry) {
      return entry.second.sessions == 0 && now - entry.second.last_seen > kForget;
    });
    if (hosts_.size() >= kMaxHosts) return nullptr;
  }
  return &hosts_
              .emplace(host,
                       Host{.calls = RateLimit(options_.calls_per_second, now), .last_seen = now})
              .first->second;
}

absl::Status PeerLimits::TakeCall(const std::string& host, absl::Time now) {
  const std::lock_guard lock(mutex_);
  Host* entry = Find(host, now);
  if (entry == nullptr) return TooManyHosts();
  entry->last_seen = now;
  if (entry->calls.Take(now)) return absl::OkStatus();
  return ResourceExhausted("more calls than limits.calls_per_second = ", options_.calls_per_second,
                           " from one address");
}

absl::Status PeerLimits::OpenSession(const std::string& host, absl::Time now) {
  const std::lock_guard lock(mutex_);
  Host* entry = Find(host, now);
  if (entry == nullptr) return TooManyHosts();
  entry->last_seen = now;
  if (entry->sessions >= options_.max_sessions) {
    return ResourceExhausted("limits.max_sessions_per_peer = ", options_.max_sessions,
                             " streams are open from this address");
  }
  ++entry->sessions;
  return absl::OkStatus();
}

void PeerLimits::CloseSession(const std::string& host) {
  const std::lock_guard lock(mutex_);
  const auto found = hosts_.find(host);
  if (found != hosts_.end() && found->second.sessions > 0) --found->second.sessions;
}

std::string HostOf(const std::string& peer) {
  if (peer.starts_with("unix") || peer.starts_with(kAcceptedPeer)) return std::string(kUnixHost);
  return peer.substr(0, peer.rfind(':'));
}

bool IsThisMachine(const std::string& host) {
  return host == kUnixHost || host.starts_with("ipv4:127.") || host == "ipv6:[::1]" ||
         host == "ipv6:%5B::1%5D" || host.starts_with("ipv6:[::ffff:127.") ||
         host.starts_with("ipv6:%5B::ffff:127.");
}

}  // namespace eplb
