// Who may do what: pure functions of an identity, a verb and a job.
#ifndef EPLB_SERVER_RPC_AUTHORIZE_H_
#define EPLB_SERVER_RPC_AUTHORIZE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "server/tls_options.h"

namespace eplb {

enum class Verb { kSession, kExchange, kQuery, kAdmin };

//           Session, Exchange   Query   Admin
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

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_AUTHORIZE_H_
