// The daemon's TOML file.
#ifndef EPLB_SERVER_CONFIG_CONFIG_FILE_H_
#define EPLB_SERVER_CONFIG_CONFIG_FILE_H_

#include <string>

#include "absl/status/status.h"

#include "server/config/config.h"

namespace eplb {

// Sets in `config` what the file says. errors: InvalidArgument, one line that begins with the path
// and, where it is about a key, has its line.
absl::Status ApplyConfigFile(const std::string& file, DaemonConfig* config);

}  // namespace eplb

#endif  // EPLB_SERVER_CONFIG_CONFIG_FILE_H_
