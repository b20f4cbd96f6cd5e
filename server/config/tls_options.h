// How eplbd proves itself to its peers, and which peers may do what.
#pragma once

#include <string>
#include <vector>

namespace eplb {

// Rights of an identity on the jobs of its rule.
enum class AccessRole {
  kMember,    // be a rank, and ask
  kViewer,    // ask
  kOperator,  // ask, and change what runs
  kLocal,     // everything: a process of this machine; no rule gives this
};

struct IdentityRule {
  std::string
      pattern;  // URI or DNS name of the certificate: exact, or a prefix with `*` at its end
  AccessRole role = AccessRole::kViewer;
  std::vector<std::string> jobs;  // names, prefixes with `*` at their end, or "*" for all
};

// PEM files. All three or none.
struct TlsOptions {
  std::string cert = {};  // the daemon's chain, its own first
  std::string key = {};
  std::string ca = {};  // authority that must have signed a peer's certificate
  std::vector<IdentityRule> identities = {};  // the most specific pattern counts

  bool enabled() const { return !cert.empty(); }
};

}  // namespace eplb
