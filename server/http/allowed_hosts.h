// Names under which the daemon's HTTP side answers. A page of a stranger can give its own name the
// address of this machine and make a browser read this daemon (DNS rebinding). The browser then
// sends that name in `Host`; the page cannot make it send an address. So every IP address passes,
// which probes of Kubernetes need, but only known names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace eplb {

class AllowedHosts {
 public:
  // names: besides "localhost"; without a port, in any case.
  explicit AllowedHosts(std::vector<std::string> names);

  // host: of the header, NAME, V4 or [V6], with or without a port. cost: O(names).
  bool Allows(std::string_view host) const;

 private:
  std::vector<std::string> names_;
};

}  // namespace eplb
