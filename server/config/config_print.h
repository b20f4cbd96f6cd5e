// The configuration in force as a configuration file.
#ifndef EPLB_SERVER_CONFIG_CONFIG_PRINT_H_
#define EPLB_SERVER_CONFIG_CONFIG_PRINT_H_

#include <string>

#include "server/config/config.h"

namespace eplb {

// Every key as TOML, with where its value comes from as a comment. LoadConfig of this text gives
// the same values. Of secrets it has the paths alone. cost: linear.
std::string ConfigToml(const DaemonConfig& config);

// "eplbd.toml: ok, 7 keys; 2 more from variables and flags", for --check-config. file: empty: none.
std::string ConfigSummary(const DaemonConfig& config, const std::string& file);

}  // namespace eplb

#endif  // EPLB_SERVER_CONFIG_CONFIG_PRINT_H_
