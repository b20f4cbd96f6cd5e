// Rules of certificates, roles and verbs.
#include "server/rpc/identity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"

namespace eplb {

namespace {

constexpr size_t kShownBytes = 128;

bool Permits(AccessRole role, Verb verb) {
  if (verb == Verb::kQuery || role == AccessRole::kLocal) return true;
  return role == (verb == Verb::kAdmin ? AccessRole::kOperator : AccessRole::kMember);
}

// By AccessRole and by Verb, in their order.
constexpr const char* kRoleNames[] = {"member", "viewer", "operator", "local"};
constexpr const char* kVerbNames[] = {"be a rank", "join a rendezvous", "ask for placements", "ask",
                                      "change what runs"};

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
  if (!peer.role) return PermissionDenied(who, ": no rule of tls.identity fits");
  if (!Permits(*peer.role, verb)) {
    return PermissionDenied(who, ": role ", kRoleNames[static_cast<int>(*peer.role)], " may not ",
                            kVerbNames[static_cast<int>(verb)]);
  }
  const bool about_no_job = job.empty() && verb == Verb::kQuery;
  const bool fits = std::ranges::any_of(
      peer.jobs, [job](const std::string& pattern) { return FitsPattern(pattern, job); });
  if (about_no_job || fits) return absl::OkStatus();
  return PermissionDenied(who, ": not allowed for job \"", Shown(job), "\" (tls.identity)");
}

}  // namespace eplb
