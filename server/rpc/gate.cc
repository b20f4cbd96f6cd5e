#include "server/rpc/gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpc/grpc_security_constants.h>

#include "base/foreign_text.h"
#include "base/monotonic_clock.h"
#include "server/process/log.h"
#include "server/rpc/acceptors.h"

namespace eplb {

namespace {

// A bucket is full again 2 s after its last call; an address is forgotten then.
constexpr absl::Duration kForget = absl::Seconds(2);

absl::Status TooManyHosts() {
  return absl::ResourceExhaustedError(
      absl::StrCat("calls from ", PeerLimits::kMaxHosts, " addresses, retry later"));
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
  return absl::ResourceExhaustedError(absl::StrCat("more calls than limits.calls_per_second = ",
                                                   options_.calls_per_second, " from one address"));
}

absl::Status PeerLimits::OpenSession(const std::string& host, absl::Time now) {
  const std::lock_guard lock(mutex_);
  Host* entry = Find(host, now);
  if (entry == nullptr) return TooManyHosts();
  entry->last_seen = now;
  if (entry->sessions >= options_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.max_sessions_per_peer = ", options_.max_sessions,
                     " streams are open from this address"));
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

namespace {

constexpr size_t kShownBytes = 128;

bool Permits(AccessRole role, Verb verb) {
  switch (verb) {
    case Verb::kSession:
    case Verb::kAllGather:
      return role == AccessRole::kMember || role == AccessRole::kLocal;
    case Verb::kQuery:
      return true;
    case Verb::kAdmin:
      return role == AccessRole::kOperator || role == AccessRole::kLocal;
  }
  return false;
}

const char* NameOf(AccessRole role) {
  switch (role) {
    case AccessRole::kMember:
      return "member";
    case AccessRole::kViewer:
      return "viewer";
    case AccessRole::kOperator:
      return "operator";
    case AccessRole::kLocal:
      return "local";
  }
  return "unknown";
}

const char* NameOf(Verb verb) {
  switch (verb) {
    case Verb::kSession:
      return "be a rank";
    case Verb::kAllGather:
      return "join a rendezvous";
    case Verb::kQuery:
      return "ask";
    case Verb::kAdmin:
      return "change what runs";
  }
  return "do this";
}

std::string Shown(std::string_view text) { return Clipped(text, kShownBytes); }

}  // namespace

PeerIdentity LocalPeer() { return {.name = "local", .role = AccessRole::kLocal, .jobs = {"*"}}; }

PeerIdentity PlaintextPeer() {
  return {.name = "plaintext", .role = AccessRole::kMember, .jobs = {"*"}};
}

bool FitsPattern(std::string_view pattern, std::string_view text) {
  if (!pattern.ends_with('*')) return pattern == text;
  return text.starts_with(pattern.substr(0, pattern.size() - 1));
}

PeerIdentity CertifiedPeer(const std::string& name, std::span<const IdentityRule> rules) {
  PeerIdentity peer{.name = name, .certified = true};
  size_t longest = 0;
  for (const IdentityRule& rule : rules) {
    if (!FitsPattern(rule.pattern, name)) continue;
    const bool exact = rule.pattern == name;
    if (peer.role && !exact && rule.pattern.size() < longest) continue;
    peer.role = rule.role;
    peer.jobs = rule.jobs;
    if (exact) break;
    longest = rule.pattern.size();
  }
  return peer;
}

PeerIdentity CertifiedPeer(const CertifiedNames& names, std::span<const IdentityRule> rules) {
  if (names.uris.size() == 1) return CertifiedPeer(names.uris.front(), rules);
  if (names.uris.size() > 1) {
    return {.unnamed = absl::StrCat("the peer's certificate has ", names.uris.size(),
                                    " URIs, expected one")};
  }
  for (const std::string& name : names.dns_names) {
    PeerIdentity peer = CertifiedPeer(name, rules);
    if (peer.role) return peer;
  }
  if (names.dns_names.empty()) {
    return {.unnamed = "the peer's certificate has neither a URI nor a DNS name"};
  }
  return CertifiedPeer(names.dns_names.front(), rules);
}

std::string ActorText(const PeerIdentity& peer, std::string_view claimed_by) {
  if (peer.certified || peer.user || claimed_by.empty()) return Clipped(peer.name);
  return absl::StrCat(Shown(claimed_by), " (claimed)");
}

absl::Status Allowed(const PeerIdentity& peer, Verb verb, std::string_view job) {
  if (peer.name.empty()) {
    return absl::UnauthenticatedError(peer.unnamed.empty() ? "the peer has no name" : peer.unnamed);
  }
  const std::string who = Shown(peer.name);
  if (!peer.role) {
    return absl::PermissionDeniedError(absl::StrCat(who, ": no rule of tls.identity fits"));
  }
  if (!Permits(*peer.role, verb)) {
    return absl::PermissionDeniedError(
        absl::StrCat(who, ": role ", NameOf(*peer.role), " may not ", NameOf(verb)));
  }
  const bool about_no_job = job.empty() && verb == Verb::kQuery;
  const bool fits =
      std::any_of(peer.jobs.begin(), peer.jobs.end(),
                  [job](const std::string& pattern) { return FitsPattern(pattern, job); });
  if (about_no_job || fits) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(who, ": not allowed for job \"", Shown(job), "\" (tls.identity)"));
}

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
