// The one door of every call: who asks, whether they may, and how much. What is refused is logged
// and counted here.
//   Admin, Query: if (const absl::Status status = gate->Admit(*context, Verb::kAdmin, job);
//                     !status.ok()) return Done(context, status);
#ifndef EPLB_SERVER_RPC_GATE_H_
#define EPLB_SERVER_RPC_GATE_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include <grpcpp/server_context.h>

#include "server/rpc/authorize.h"
#include "server/rpc/peer_limits.h"
#include "server/rpc/refusal.h"
#include "server/rpc/unix_acceptor.h"
#include "server/runner/rate_limit.h"

namespace eplb {

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
