// Admits, counts and logs.
#include "server/rpc/gate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include <grpc/grpc_security_constants.h>

#include "base/monotonic_clock.h"
#include "server/process/log.h"

namespace eplb {

namespace {

CertifiedNames NamesOf(const grpc::AuthContext& context) {
  CertifiedNames names;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    names.uris.emplace_back(uri.begin(), uri.end());
  }
  for (const grpc::string_ref& name : context.FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME)) {
    names.dns_names.emplace_back(name.begin(), name.end());
  }
  return names;
}

}  // namespace

Gate::Gate(Options options)
    : options_(std::move(options)),
      limits_(options_.limits),
      log_rate_(kLogsPerSecond, MonotonicNow()) {}

PeerIdentity Gate::IdentityOf(const grpc::CallbackServerContext& context) const {
  const std::string host = HostOf(context.peer());
  if (options_.tls && (host != kUnixHost || options_.tls_on_unix)) {
    return CertifiedPeer(NamesOf(*context.auth_context()), options_.identities);
  }
  PeerIdentity peer = IsThisMachine(host) ? LocalPeer() : PlaintextPeer();
  if (options_.unix_peers == nullptr) return peer;
  if (const std::optional<uid_t> user = options_.unix_peers->UserOf(context.peer())) {
    peer.name = absl::StrCat("uid ", *user);
    peer.user = *user;
  }
  return peer;
}

std::string Gate::ActorOf(const grpc::CallbackServerContext& context,
                          std::string_view claimed_by) const {
  PeerIdentity peer = IdentityOf(context);
  if (peer.user) peer.name = DescribeUser(*peer.user);
  return ActorText(peer, claimed_by);
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

absl::Status Gate::AdmitJob(const grpc::CallbackServerContext& context, Verb verb,
                            std::string_view job) {
  absl::Status status = Admit(context, verb, job);
  if (status.ok() && job.empty()) {
    return absl::InvalidArgumentError("job is empty, expected its name");
  }
  return status;
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

void Gate::Count(Refusal refusal) {
  const std::lock_guard lock(mutex_);
  ++refusals_[static_cast<size_t>(refusal)];
}

int64_t Gate::refusals(Refusal refusal) const {
  const std::lock_guard lock(mutex_);
  return refusals_[static_cast<size_t>(refusal)];
}

}  // namespace eplb
