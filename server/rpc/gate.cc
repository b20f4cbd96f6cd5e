#include "server/rpc/gate.h"

#include <utility>

#include <grpc/grpc_security_constants.h>

#include "server/log.h"
#include "server/runner/monotonic_clock.h"

namespace eplb {
namespace {

// The certificate's URI before its DNS name; empty when it has neither, or several URIs: which one
// of them is meant nobody can tell.
std::string CertifiedName(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> uris =
      context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME);
  if (uris.size() == 1) return {uris.front().begin(), uris.front().end()};
  if (!uris.empty()) return "";
  const std::vector<grpc::string_ref> names =
      context.FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME);
  if (names.empty()) return "";
  return {names.front().begin(), names.front().end()};
}

}  // namespace

Gate::Gate(Options options)
    : options_(std::move(options)),
      limits_(options_.limits),
      log_rate_(kLogsPerSecond, MonotonicNow()) {}

PeerIdentity Gate::IdentityOf(const grpc::CallbackServerContext& context) const {
  if (options_.tls) {
    return CertifiedPeer(CertifiedName(*context.auth_context()), options_.identities);
  }
  return IsThisMachine(HostOf(context.peer())) ? LocalPeer() : PlaintextPeer();
}

absl::Status Gate::Admit(const grpc::CallbackServerContext& context, Verb verb,
                         std::string_view job) {
  const std::string host = HostOf(context.peer());
  absl::Status status = limits_.TakeCall(host, MonotonicNow());
  if (!status.ok()) {
    Refuse(Refusal::kLimited, host, {status.message().data(), status.message().size()});
    return status;
  }
  return Authorize(IdentityOf(context), verb, job);
}

absl::Status Gate::Authorize(const PeerIdentity& peer, Verb verb, std::string_view job) {
  absl::Status status = Allowed(peer, verb, job);
  if (!status.ok()) {
    Refuse(absl::IsUnauthenticated(status) ? Refusal::kUnauthenticated : Refusal::kDenied,
           peer.name, {status.message().data(), status.message().size()});
  }
  return status;
}

absl::Status Gate::OpenSession(const std::string& host) {
  absl::Status status = limits_.OpenSession(host, MonotonicNow());
  if (!status.ok()) {
    Refuse(Refusal::kLimited, host, {status.message().data(), status.message().size()});
  }
  return status;
}

void Gate::Refuse(Refusal refusal, std::string_view who, std::string_view why) {
  int64_t unlogged = 0;
  {
    const std::lock_guard lock(mutex_);
    ++refusals_[static_cast<size_t>(refusal)];
    if (!log_rate_.Take(MonotonicNow())) {
      ++unlogged_;
      return;
    }
    unlogged = std::exchange(unlogged_, 0);
  }
  Log(LogLevel::kWarn, "refused",
      {{"kind", std::string(NameOf(refusal))},
       {"peer", std::string(who)},
       {"unlogged_before", unlogged},
       {"reason", std::string(why)}});
}

int64_t Gate::refusals(Refusal refusal) const {
  const std::lock_guard lock(mutex_);
  return refusals_[static_cast<size_t>(refusal)];
}

}  // namespace eplb
