// The table [tls.identity] of the configuration file:
//   [tls.identity]
//   "spiffe://example.org/train/*" = { role = "member", jobs = ["train", "tune-*"] }
//   "ops.example.org" = { role = "operator", jobs = ["*"] }
#ifndef EPLB_SERVER_CONFIG_CONFIG_IDENTITY_H_
#define EPLB_SERVER_CONFIG_CONFIG_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/toml_text.h"
#include "server/config/tls_options.h"

namespace eplb {

inline constexpr size_t kMaxIdentityRules = 1024;
inline constexpr size_t kMaxJobsPerRule = 1024;

// errors: InvalidArgument, "FILE:LINE: tls.identity \"PATTERN\": what is wrong".
absl::StatusOr<std::vector<IdentityRule>> ReadIdentityRules(const std::string& file,
                                                            const toml::table& table);

}  // namespace eplb

#endif  // EPLB_SERVER_CONFIG_CONFIG_IDENTITY_H_
