// The configuration as TOML: read from a file, printed as one.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/config/config.h"

namespace eplb {

inline constexpr size_t kMaxIdentityRules = 1024;
inline constexpr size_t kMaxJobsPerRule = 1024;

// errors: InvalidArgument, one line that begins with the path, for a file that cannot be read or is
// too long.
absl::StatusOr<std::string> ReadConfigFile(const std::string& file);

// Sets in `config` what `text`, the content of `file`, says. Beside the keys it may have a table of
// rules:
//   [tls.identity]
//   "spiffe://example.org/train/*" = { role = "member", jobs = ["train", "tune-*"] }
//   "ops.example.org" = { role = "operator", jobs = ["*"] }
// errors: InvalidArgument, one line that begins with the path and, where it is about a key, has its
// line.
absl::Status ApplyConfigText(const std::string& file, const std::string& text,
                             DaemonConfig* config);

// Every key as TOML, with where its value comes from as a comment. LoadConfig of this text gives
// the same values. Of secrets it has the paths alone. cost: linear.
std::string ConfigToml(const DaemonConfig& config);

// "eplbd.toml: ok, 7 keys; 2 more from variables and flags", for --check-config. file: empty: none.
std::string ConfigSummary(const DaemonConfig& config, const std::string& file);

}  // namespace eplb
