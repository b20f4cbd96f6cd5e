// The one door of every call: who asks, whether they may, and how much. What is refused is logged
// and counted here.
//   Admin, Query: if (const absl::Status status = gate->Admit(*context, Verb::kAdmin, job);
//                     !status.ok()) return Done(context, status);
#ifndef EPLB_SERVER_RPC_GATE_H_
#define EPLB_SERVER_RPC_GATE_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <grpcpp/server_context.h>

#include "server/config/tls_options.h"
#include "server/rpc/acceptors.h"
#include "server/runner/rate_limit.h"

namespace eplb {

// Why the daemon refuses a peer: the names of the log and of the metric.

enum class Refusal {
  kUnauthenticated,  // a certificate without a name
  kDenied,           // role or job
  kLimited,          // sessions or calls of one address, messages of one stream
  kMalformed,        // a message that breaks the protocol
  kHandshake,        // no connection: silent, plaintext, no certificate, or one that is not trusted
  kCrowded,          // a connection more than the limit of open files has room for
  kUnknownMessage,   // a message of a kind of a later version: skipped, its stream goes on
};
inline constexpr int kNumRefusals = 7;

constexpr std::string_view NameOf(Refusal refusal) {
  constexpr std::string_view kNames[kNumRefusals] = {"unauthenticated", "denied",    "limited",
                                                     "malformed",       "handshake", "crowded",
                                                     "unknown_message"};
  return kNames[static_cast<int>(refusal)];
}

// How much one address may ask for: open sessions, and calls a second.

// threads: safe. Memory: at most kMaxHosts addresses.
class PeerLimits {
 public:
  static constexpr size_t kMaxHosts = 16384;
  struct Options {
    int32_t max_sessions = 4096;       // limits.max_sessions_per_peer
    int32_t calls_per_second = 10000;  // limits.calls_per_second
  };
  explicit PeerLimits(Options options) : options_(options) {}

  // errors: ResourceExhausted naming the limit. now must not go back.
  absl::Status TakeCall(const std::string& host, absl::Time now);
  // Each OK is answered by one CloseSession.
  absl::Status OpenSession(const std::string& host, absl::Time now);
  void CloseSession(const std::string& host);

 private:
  struct Host {
    RateLimit calls;
    absl::Time last_seen;
    int32_t sessions = 0;
  };
  // Null when the table is full of addresses that are at work.
  Host* Find(const std::string& host, absl::Time now);

  const Options options_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, Host> hosts_;
};

inline constexpr std::string_view kUnixHost = "unix";
// "ipv4:10.0.0.1:4711" and "ipv6:[::1]:4711" without the port; "unix" for any Unix socket.
std::string HostOf(const std::string& peer);
// Whether only a process of this machine can have that host.
bool IsThisMachine(const std::string& host);

// Who may do what: pure functions of an identity, a verb and a job.

enum class Verb { kSession, kAllGather, kQuery, kAdmin };

//           Session, AllGather   Query   Admin
// member           yes           yes      -
// viewer            -            yes      -
// operator          -            yes     yes
// local            yes           yes     yes
struct PeerIdentity {
  std::string name = {};   // of the certificate; "uid 1000", "local", "plaintext"; empty: none
  bool certified = false;  // the name is that of a certificate
  std::optional<uint32_t> user = {};    // of a Unix socket's other end, as the kernel says
  std::string unnamed = {};             // why there is no name, one sentence
  std::optional<AccessRole> role = {};  // none: no rule fits the name
  std::vector<std::string> jobs = {};   // patterns
};

// A process of this machine, on a listener without TLS.
PeerIdentity LocalPeer();
// Another machine, on a listener without TLS (--insecure-network): a member of every job, so that
// training works and nobody changes what runs.
PeerIdentity PlaintextPeer();
// The rule of a certificate's name: an equal pattern before the longest fitting prefix.
PeerIdentity CertifiedPeer(const std::string& name, std::span<const IdentityRule> rules);

// What a certificate says of its owner, in its order.
struct CertifiedNames {
  std::vector<std::string> uris = {};
  std::vector<std::string> dns_names = {};
};
// By the URI, which hides the DNS names; without one by the first DNS name that a rule fits, or the
// first. Nobody when there are several URIs: nobody can tell which one is meant.
PeerIdentity CertifiedPeer(const CertifiedNames& names, std::span<const IdentityRule> rules);

// True when `pattern` is `text`, or ends with `*` and `text` begins with the rest.
bool FitsPattern(std::string_view pattern, std::string_view text);

// Who asked for a change: the certificate's name or the kernel's user, and where neither is known
// what the caller claims, marked: "alice@host (claimed)". One line, at most 600 bytes.
std::string ActorText(const PeerIdentity& peer, std::string_view claimed_by);

// job: as the request says it, not checked; empty for a question about no job.
// errors: Unauthenticated without a name, PermissionDenied: one line that says who lacks what.
absl::Status Allowed(const PeerIdentity& peer, Verb verb, std::string_view job);

// threads: safe.
class Gate {
 public:
  struct Options {
    bool tls = false;  // peers have certificates; else the address tells
    // Also those that come over a Unix socket. The socket beside an address with TLS asks for no
    // certificate: the mode of its file says who may connect.
    bool tls_on_unix = false;
    const UnixPeers* unix_peers = nullptr;  // the users of Unix sockets; outlives the gate
    std::vector<IdentityRule> identities = {};
    PeerLimits::Options limits = {};
  };
  explicit Gate(Options options);

  // Of a call that is no stream: its peer's rate and rights. job: empty for a question about none.
  // errors: those of Allowed and PeerLimits::TakeCall.
  absl::Status Admit(const grpc::CallbackServerContext& context, Verb verb, std::string_view job);
  // The rights alone, for a stream's Hello.
  absl::Status Authorize(const PeerIdentity& peer, Verb verb, std::string_view job);
  // Who asks.
  PeerIdentity IdentityOf(const grpc::CallbackServerContext& context) const;
  // Who asks, for the audit log: see ActorText. cost: may wait for the user database.
  std::string ActorOf(const grpc::CallbackServerContext& context,
                      std::string_view claimed_by) const;

  // host: HostOf(context.peer()). Each OK is answered by one CloseSession.
  absl::Status OpenSession(const std::string& host);
  void CloseSession(const std::string& host) { limits_.CloseSession(host); }

  // Counts, and logs at most kLogsPerSecond lines a second; who: an identity or an address.
  void Refuse(Refusal refusal, std::string_view who, std::string_view why);
  // Counts without a log line, for what was logged once before.
  void Count(Refusal refusal);
  int64_t refusals(Refusal refusal) const;

 private:
  static constexpr int32_t kLogsPerSecond = 10;

  const Options options_;
  PeerLimits limits_;
  mutable std::mutex mutex_;  // guards what follows
  std::array<int64_t, kNumRefusals> refusals_{};
  RateLimit log_rate_;
  int64_t unlogged_ = 0;
};

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_GATE_H_
