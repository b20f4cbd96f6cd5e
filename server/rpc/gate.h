// The one check that every call passes: which caller it is, what the caller may do, and how much.
// Refusals are logged and counted here.
//   Admin, Query: if (const absl::Status status = gate->AdmitJob(*context, Verb::kAdmin, job);
//                     !status.ok()) return Done(context, status);
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include <grpcpp/server_context.h>

#include "server/config/tls_options.h"
#include "server/rpc/identity.h"
#include "server/rpc/peer_limits.h"
#include "server/rpc/unix_acceptor.h"
#include "server/runner/rate_limit.h"

namespace eplb {

// Reasons to refuse a peer. The log and the metric use their names.

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

// threads: safe.
class Gate {
 public:
  struct Options {
    bool tls = false;  // peers have certificates; otherwise the address decides
    // Peers on a Unix socket have certificates too. The socket beside an address with TLS asks for
    // no certificate, because the mode of its file decides which users may connect.
    bool tls_on_unix = false;
    const UnixPeers* unix_peers = nullptr;  // the users of Unix sockets; outlives the gate
    std::vector<IdentityRule> identities = {};
    PeerLimits::Options limits = {};
  };
  explicit Gate(Options options);

  // Checks the rate and the rights of a call that is no stream. job: empty for a question about no
  // job. errors: those of Allowed and PeerLimits::TakeCall.
  absl::Status Admit(const grpc::CallbackServerContext& context, Verb verb, std::string_view job);
  // Admits a call about one job. errors: also InvalidArgument if `job` is empty.
  absl::Status AdmitJob(const grpc::CallbackServerContext& context, Verb verb,
                        std::string_view job);
  // Checks the rights alone, for a stream's Hello.
  absl::Status Authorize(const PeerIdentity& peer, Verb verb, std::string_view job);
  PeerIdentity IdentityOf(const grpc::CallbackServerContext& context) const;
  // Returns the caller for the audit log; see ActorText. cost: may wait for the user database.
  std::string ActorOf(const grpc::CallbackServerContext& context,
                      std::string_view claimed_by) const;

  // host: HostOf(context.peer()). The caller calls CloseSession once for each OK.
  absl::Status OpenSession(const std::string& host);
  void CloseSession(const std::string& host) { limits_.CloseSession(host); }

  // Counts a refusal, and logs at most kLogsPerSecond lines per second. who: an identity or an
  // address.
  void Refuse(Refusal refusal, std::string_view who, std::string_view why);
  // Counts a refusal that was logged once before.
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
