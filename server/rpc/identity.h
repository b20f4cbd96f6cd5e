// Which caller may do what: pure functions of an identity, a verb and a job.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "server/config/tls_options.h"

namespace eplb {

enum class Verb { kSession, kAllGather, kPlan, kQuery, kAdmin };

//           Session, AllGather, Plan   Query   Admin
// member              yes               yes      -
// viewer               -                yes      -
// operator             -                yes     yes
// local               yes               yes     yes
struct PeerIdentity {
  std::string name =
      {};  // name in the certificate; "uid 1000", "local", "plaintext"; empty: no name
  bool certified = false;               // the name is that of a certificate
  std::optional<uint32_t> user = {};    // at the other end of a Unix socket, by the kernel
  std::string unnamed = {};             // why there is no name, one sentence
  std::optional<AccessRole> role = {};  // absent: no rule fits the name
  std::vector<std::string> jobs = {};   // patterns
};

// Returns the identity of a process of this machine, on a listener without TLS.
PeerIdentity LocalPeer();
// Returns the identity of another machine, on a listener without TLS (--insecure-network): a member
// of every job, so that training works and no caller changes what runs.
PeerIdentity PlaintextPeer();
// Returns the identity by the rule of a certificate's name. An equal pattern has precedence over
// the longest fitting prefix.
PeerIdentity CertifiedPeer(const std::string& name, std::span<const IdentityRule> rules);

// Names in a certificate, in its order.
struct CertifiedNames {
  std::vector<std::string> uris = {};
  std::vector<std::string> dns_names = {};
};
// Chooses the URI if there is one, otherwise the first DNS name that a rule fits, otherwise the
// first DNS name. With several URIs the identity has no name, because none of them is the certain
// one.
PeerIdentity CertifiedPeer(const CertifiedNames& names, std::span<const IdentityRule> rules);

// Returns true if `pattern` is `text`, or ends with `*` and `text` begins with the rest.
bool FitsPattern(std::string_view pattern, std::string_view text);

// Returns the caller of a change for the audit log: the certificate's name or the kernel's user. If
// neither is known, returns the caller's own claim: "alice@host (claimed)". One line, at most 600
// bytes.
std::string ActorText(const PeerIdentity& peer, std::string_view claimed_by);

// job: as in the request, not checked; empty for a question about no job.
// errors: Unauthenticated without a name; PermissionDenied, one line with the caller and the right
// that it lacks.
absl::Status Allowed(const PeerIdentity& peer, Verb verb, std::string_view job);

}  // namespace eplb
